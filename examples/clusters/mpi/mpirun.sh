#!/bin/bash
# Runs an MXNet dist_sync job with mpirun: Open MPI, MPICH or Intel MPI. MXNet does not use MPI; it only starts the processes.
# usage: mpirun.sh SERVERS WORKERS [MPIRUN OPTION ...] -- COMMAND ...
# example, one server and one worker on each of two hosts:
#   ./mpirun.sh 2 2 --host gpu1:3,gpu2:3 --map-by node --bind-to none -- python train.py --kv-store dist_sync
# The first host also runs the scheduler, so it needs one more slot. '--bind-to none' gives a worker all cores of its host.
# DMLC_PS_ROOT_URI, the IP address of the first host, and DMLC_PS_ROOT_PORT are found if they are not set.
set -eu

fail() { echo "mpirun.sh: error: $*" >&2; exit 2; }
usage="usage: mpirun.sh SERVERS WORKERS [MPIRUN OPTION ...] -- COMMAND ..."

[[ "${1:-}" =~ ^[1-9][0-9]*$ && "${2:-}" =~ ^[1-9][0-9]*$ ]] || fail "the numbers of servers and workers come first; $usage"
servers=$1 workers=$2
shift 2
options=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do options+=("$1"); shift; done
[ $# -gt 1 ] || fail "no command given after '--'; $usage"
shift

role=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/role.sh
root=${DMLC_PS_ROOT_URI:-$(mpirun -np 1 ${options[@]+"${options[@]}"} hostname -I | awk '{print $1; exit}')}
[ -n "$root" ] || fail "the address of the first host was not found; set DMLC_PS_ROOT_URI"
port=${DMLC_PS_ROOT_PORT:-$((10000 + RANDOM % 20000))}

# 'env' sets the variables with every MPI; the options of mpirun for this differ.
exec mpirun -np $((1 + servers + workers)) ${options[@]+"${options[@]}"} \
  env DMLC_NUM_SERVER="$servers" DMLC_NUM_WORKER="$workers" DMLC_PS_ROOT_URI="$root" DMLC_PS_ROOT_PORT="$port" \
  "$role" "$@"
