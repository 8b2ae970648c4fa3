"""One rank of a job that compares all-reduces: ``python -m benchmarks.jobs.collectives TASK RESULT`` (benchmarks/testbed/ranks.py)."""

import hashlib
import json
import resource
import sys
import time
from datetime import timedelta
from typing import Any, Callable, Dict, NamedTuple, Tuple

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.testbed.emulated_torch import Device, EmulatedModel, EmulatedUpdates
from benchmarks.testbed.ranks import RankTask
from prophet_mx.profiling.gradient_profile import GradientProfile

BATCH = 8  # images of a rank, in real training
NORM = 1e30  # that no gradient exceeds: clipping multiplies by 1


class Training(NamedTuple):
    """What a rank trains. ``loss`` of an iteration, of the model or of what wraps it; ``wrong``: gradients with a wrong value so far."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[torch.nn.Module, int], torch.Tensor]
    wrong: Callable[[], int]


def main() -> None:
    task = RankTask.load(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    result = train(task)
    with open(sys.argv[2], "w") as file:
        json.dump(result, file)
    dist.destroy_process_group()


def train(task: RankTask) -> Dict[str, Any]:
    """Run this rank.

    Returns ``starts`` (when each iteration began, seconds of the monotonic clock), ``call_seconds`` (of clipping, optimizer.step() and
    zero_grad(), per iteration), ``cpu_seconds`` and ``wall_seconds`` of the loop, ``memory_bytes`` (the most that was resident), ``wrong``
    (gradients with a wrong value) and ``weights`` (a hash of all in the end).
    """
    training = emulated(task) if task.profile else real(dist.get_rank())
    model, optimizer = training.model, training.optimizer
    net, close = model, None
    if task.scheduled:
        from prophet_mx.torch import ScheduledOptimizer

        optimizer = ScheduledOptimizer(model, optimizer)
        close = optimizer.close
    else:
        megabytes = {} if task.bucket is None else {"bucket_cap_mb": task.bucket / 2**20}
        net = DistributedDataParallel(model, gradient_as_bucket_view=True, **megabytes)
        if task.bf16:
            net.register_comm_hook(None, _compressed)
    dist.barrier()
    starts, calls = [], []
    processor = time.process_time()
    for iteration in range(task.iterations):
        starts.append(time.monotonic())
        training.loss(net, iteration).backward()
        begin = time.monotonic()
        if task.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), NORM)
        optimizer.step()
        optimizer.zero_grad()
        calls.append(time.monotonic() - begin)
    processor, wall = time.process_time() - processor, time.monotonic() - starts[0]
    if close:
        close()
    weights = hashlib.sha256(b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())).hexdigest()
    return {
        "starts": starts,
        "call_seconds": calls,
        "cpu_seconds": processor,
        "wall_seconds": wall,
        "memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "wrong": training.wrong(),
        "weights": weights,
    }


def _compressed(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """PyTorch's hook under another name: by its own it is refused without NCCL, although gloo sums bfloat16 as well."""
    return bf16_compress_hook(state, bucket)


def emulated(task: RankTask) -> Training:
    """The model of a profile, its optimizer, its loss, and how many gradients were wrong so far."""
    rank = dist.get_rank()
    stretch = task.slowdown[rank] if task.slowdown else 1.0
    device = Device(task.device, stretch, task.jitter, seed=rank)
    model = EmulatedModel(GradientProfile.load(task.profile), device, rank)
    model.calibrate(device)
    updates = EmulatedUpdates(model, device, dist.get_world_size())
    if task.device:
        updates.install()
    x = torch.zeros(1, requires_grad=True)
    return Training(model, _sgd(model, 0.1), lambda net, iteration: net(x).sum(), lambda: updates.wrong)


def _sgd(model: torch.nn.Module, rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)


class Block(torch.nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            torch.nn.BatchNorm2d(outputs),
            torch.nn.ReLU(),
            torch.nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            torch.nn.BatchNorm2d(outputs),
        )
        narrow = torch.nn.Sequential(torch.nn.Conv2d(inputs, outputs, 1, stride, bias=False), torch.nn.BatchNorm2d(outputs))
        self.shortcut = narrow if inputs != outputs else torch.nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet(widths: Tuple[int, ...] = (64, 128, 256, 512), depth: int = 1, classes: int = 10) -> torch.nn.Module:
    """A residual network for images of 32 x 32; of depth 2 it is ResNet-18."""
    layers = [torch.nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), torch.nn.BatchNorm2d(widths[0]), torch.nn.ReLU()]
    inputs = widths[0]
    for width in widths:
        for place in range(depth):
            layers.append(Block(inputs, width, 2 if place == 0 and width > inputs else 1))
            inputs = width
    return torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(inputs, classes))


def real(rank: int) -> Training:
    """A small residual network on images of noise, its optimizer and its loss."""
    torch.manual_seed(0)
    model = resnet()
    generator = torch.Generator().manual_seed(rank)
    images = torch.randn(4, BATCH, 3, 32, 32, generator=generator)
    labels = torch.randint(10, (4, BATCH), generator=generator)

    def loss(net: torch.nn.Module, iteration: int) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(net(images[iteration % 4]), labels[iteration % 4])

    return Training(model, _sgd(model, 0.01), loss, lambda: 0)


if __name__ == "__main__":
    main()
