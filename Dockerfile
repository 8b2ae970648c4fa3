# prophet_mx with MXNet 1.9.1, built and ready to train.
#
#   docker build -t prophet-mx .                                                            MXNet for CUDA 11.2
#   docker run --rm --gpus all prophet-mx prophet-mx doctor
# On two GPUs:
#   docker run --rm --gpus all prophet-mx prophet-mx launch -n 2 -s 1 --gpus-per-worker 1 -- python \
#     examples/mxnet-image-classification/train_imagenet.py --network resnet --num-layers 50 --kv-store dist_sync --benchmark 1 --gpus 0
# 'make demo' and 'make test' use the CPU, in this image too.
#
#   docker build -t prophet-mx-cpu --build-arg MXNET=cpu .                                  MXNet for CPUs, a small image
#   docker run --rm prophet-mx-cpu make test
#
# A job of your own, on the machine's own network, which the other hosts reach:
#   docker run --rm --gpus all --network host -v "$PWD":/job -w /job prophet-mx prophet-mx launch -n 2 -s 1 -- python train.py

# There is no CUDA in it: pip brings the libraries that MXNet's CUDA wheel loads, and the host's driver comes with --gpus. MXNet supports
# Ubuntu 20.04's own Python, 3.8.
ARG BASE=ubuntu:20.04
FROM ${BASE}

# The extra of pyproject.toml that installs MXNet: cu112 or cpu.
ARG MXNET=cu112
ENV MXNET=${MXNET} \
    LANG=C.UTF-8 \
    PYTHONUNBUFFERED=1 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

# iproute2 is for tests of shaped networks, which also need root and are skipped here.
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
      ca-certificates gcc iproute2 libc6-dev make openssh-client openssh-server python3 python3-dev python3-venv \
 && rm -rf /var/lib/apt/lists/*

RUN useradd --create-home --uid 1000 prophet \
 && install -d -o prophet -g prophet /opt/prophet_mx

USER prophet
WORKDIR /opt/prophet_mx
COPY --chown=prophet:prophet . .
# The link gives NVIDIA's packages one path for every version of Python. It leads nowhere in an image for CPUs.
RUN make build \
 && rm -rf build ~/.cache \
 && cd .venv && ln -s lib/python3*/site-packages/nvidia nvidia

# The folders of NVIDIA's libraries, for what is started without 'prophet-mx launch', too.
ENV PATH=/opt/prophet_mx/.venv/bin:${PATH} \
    NVIDIA=/opt/prophet_mx/.venv/nvidia
ENV LD_LIBRARY_PATH=${NVIDIA}/cublas/lib:${NVIDIA}/cuda_nvrtc/lib:${NVIDIA}/cuda_runtime/lib:${NVIDIA}/cudnn/lib:${NVIDIA}/cufft/lib:\
${NVIDIA}/curand/lib:${NVIDIA}/cusolver/lib:${NVIDIA}/nccl/lib:${NVIDIA}/nvtx/lib

CMD ["prophet-mx", "doctor"]
