# prophet_mx with MXNet 1.9.1, built and ready to train.
#
#   docker build -t prophet-mx .                                                            MXNet for CUDA 11.2
#   docker run --rm --gpus all prophet-mx prophet-mx doctor
# On two GPUs:
#   docker run --rm --gpus all prophet-mx prophet-mx launch -n 2 -s 1 --gpus-per-worker 1 -- python \
#     examples/mxnet-image-classification/train_imagenet.py --network resnet --num-layers 50 --kv-store dist_sync --benchmark 1 --gpus 0
# 'make demo' and 'make test' use the CPU, in this image too.
#
#   docker build -t prophet-mx-cpu --build-arg BASE=ubuntu:20.04 --build-arg MXNET=cpu .    MXNet for CPUs, a small image
#   docker run --rm prophet-mx-cpu make test
#
# A job of your own, on the machine's own network, which the other hosts reach:
#   docker run --rm --gpus all --network host -v "$PWD":/job -w /job prophet-mx prophet-mx launch -n 2 -s 1 -- python train.py

# The runtime image has cuDNN 8 and NCCL 2, which MXNet's CUDA wheel needs. MXNet supports Ubuntu 20.04's own Python, 3.8.
ARG BASE=nvidia/cuda:11.2.2-cudnn8-runtime-ubuntu20.04
FROM ${BASE}

# The extra of pyproject.toml that installs MXNet: cu112 or cpu.
ARG MXNET=cu112
ENV MXNET=${MXNET} \
    LANG=C.UTF-8 \
    PYTHONUNBUFFERED=1

# CUDA's own package lists are not needed, and their signing key has changed since the image was built.
# iproute2 is for tests of shaped networks, which also need root and are skipped here.
RUN rm -f /etc/apt/sources.list.d/cuda*.list /etc/apt/sources.list.d/nvidia-ml*.list \
 && apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
      ca-certificates gcc iproute2 libc6-dev make openssh-client openssh-server python3 python3-dev python3-venv \
 && rm -rf /var/lib/apt/lists/*

RUN useradd --create-home --uid 1000 prophet \
 && install -d -o prophet -g prophet /opt/prophet_mx

USER prophet
WORKDIR /opt/prophet_mx
COPY --chown=prophet:prophet . .
RUN make build \
 && rm -rf build ~/.cache

ENV PATH=/opt/prophet_mx/.venv/bin:${PATH}
CMD ["prophet-mx", "doctor"]
