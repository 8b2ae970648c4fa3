#!/bin/sh
# unknown.sh LIBMXNET OBJECT...: C++ on the standard output, with an error for each function of CUDA that LIBMXNET refers to and no
# OBJECT defines. A call says on stderr which function it is, and returns what the function's library calls "not supported".
set -eu
libmxnet=$1
shift
libraries='^(__)?(cuda|cublas|cudnn|cufft|curand|cusolver|nccl|nvrtc|nvtx)|^cu[A-Z]'
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
nm -D --undefined-only "$libmxnet" | awk '{ sub(/@.*/, "", $2); print $2 }' | grep -E "$libraries" | LC_ALL=C sort -u >"$folder/wanted"
nm --defined-only --extern-only "$@" | awk 'NF == 3 { print $3 }' | grep -E "$libraries" | LC_ALL=C sort -u >"$folder/known"

echo '#include "error.h"'
echo 'extern "C" {'
LC_ALL=C comm -23 "$folder/wanted" "$folder/known" | while read -r name; do
  case $name in
    cudnn*) code=9 ;;
    cublas*) code=15 ;;
    cufft*) code=16 ;;
    curand* | nccl* | nvrtc*) code=5 ;;
    cusolver*) code=9 ;;
    *) code=emulated::not_emulated ;;
  esac
  echo "int $name() { return emulated::unknown(\"$name\", $code); }"
done
echo '}'
