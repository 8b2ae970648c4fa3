"""On a GPU trainings end as with DistributedDataParallel, bit for bit. Both ranks are on the same one."""

import functools
import os
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn, optim
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

from support.ranks import on_ranks
from support.training import Hooked, Method, Scheduled, ScheduledDDP, assert_equal, backward, batches, run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU for PyTorch")

ITERATIONS = 10
without_nccl = pytest.mark.skipif(not dist.is_nccl_available(), reason="there is no GPU with NCCL: this PyTorch was built without it")
BACKENDS = ["gloo", pytest.param("nccl", marks=without_nccl)]
OPTIMIZERS = {
    "SGD momentum": lambda params: optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "Adam fused": lambda params: optim.Adam(params, lr=0.01, fused=True),
    "AdamW foreach": lambda params: optim.AdamW(params, lr=0.01, foreach=True),
}


def net():
    """Gradients smaller than a unit, about as large, and larger."""
    last = nn.Linear(33, 900, bias=False)
    return nn.Sequential(nn.Linear(7, 40), nn.Tanh(), nn.Linear(40, 33), nn.BatchNorm1d(33), nn.ReLU(), last).cuda()


def group_of(backend):
    """NCCL refuses two ranks on one GPU unless it takes them for ranks on two hosts."""
    os.environ.update(NCCL_HOSTID=str(dist.get_rank()), NCCL_SOCKET_IFNAME="lo", CUBLAS_WORKSPACE_CONFIG=":4096:8")
    torch.cuda.set_device(0)
    return dist.new_group(backend=backend)


def compare(training, backend, hook=None, **options):
    """``training`` gets the process group as well; ``hook``: of the DDP."""
    group = group_of(backend)
    plain = Method() if hook is None else Hooked(lambda _, bucket: hook(group, bucket))

    def by(method):
        return run(lambda method: training(method, group), method)

    expected = by(plain)
    for method in (Scheduled(**options), ScheduledDDP(**options)):
        assert_equal(expected, by(method), f"{type(method).__name__} {method.options}")


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("backend", BACKENDS)
@on_ranks(2, timeout=120)
def test_bit_for_bit_with_accumulation(backend, name):
    def training(method, group):
        model = net()
        forward, optimizer = method.wrap(model, OPTIMIZERS[name](model.parameters()), process_group=group)
        data = batches(2 * ITERATIONS, 16, 7)
        for _ in range(ITERATIONS):
            optimizer.zero_grad()
            for last in (False, True):
                with nullcontext() if last else method.no_sync():
                    loss = forward(next(data).cuda()).square().mean()
                    loss.backward()
            optimizer.step()
            yield loss

    compare(training, backend)


def momentum(method, group, limit=None):
    """A training; ``limit``: of the norm of its gradients."""
    model = net()
    forward, optimizer = method.wrap(model, optim.SGD(model.parameters(), lr=0.1, momentum=0.9), process_group=group)
    for batch in batches(2 * ITERATIONS, 16, 7):
        yield backward(forward, optimizer, batch.cuda())
        if limit is not None:
            yield nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()


@pytest.mark.parametrize("backend", BACKENDS)
@on_ranks(2, timeout=120)
def test_clipping(backend):
    compare(functools.partial(momentum, limit=0.05), backend)


@pytest.mark.parametrize("backend", BACKENDS)
@on_ranks(2, timeout=120)
def test_mixed_precision_with_a_scaler(backend):
    def training(method, group):
        model = net()
        forward, optimizer = method.wrap(model, optim.Adam(model.parameters(), lr=0.01), process_group=group)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**40, growth_interval=3)  # so large that steps are skipped
        for batch in batches(2 * ITERATIONS, 16, 7):
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = forward(batch.cuda()).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            yield loss
            yield scaler.get_scale()

    compare(training, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@on_ranks(2, timeout=120)
def test_16_bits(backend):
    compare(momentum, backend, bf16_compress_hook, compress="bf16")


@pytest.mark.parametrize("backend", BACKENDS)
@on_ranks(2, timeout=120)
def test_parameters_that_one_rank_did_not_use(backend):
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.common, self.branches = nn.Linear(7, 40), nn.ModuleList([nn.Linear(40, 30), nn.Linear(40, 30)])

        def forward(self, batch, place):
            return self.branches[place](torch.tanh(self.common(batch)))

    def training(method, group):
        model = Branches().cuda()
        made = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        forward, optimizer = method.wrap(model, made, process_group=group, find_unused_parameters=True)
        for number, batch in enumerate(batches(2 * ITERATIONS, 16, 7)):
            optimizer.zero_grad()
            loss = forward(batch.cuda(), number // 2 % 2 if dist.get_rank() else number % 2).square().mean()
            loss.backward()
            optimizer.step()
            yield loss

    compare(training, backend)


@without_nccl
@on_ranks(3, timeout=120)
def test_some_ranks_of_a_job_that_is_bound_to_devices():
    """The third rank makes no group. PyTorch would wait for it, as it splits the job's communicator for each new group."""
    group_of("gloo")
    store, rank = dist.distributed_c10d._get_default_store(), dist.get_rank()
    dist.destroy_process_group()
    device = torch.device("cuda", 0)
    dist.init_process_group("nccl", store=dist.PrefixStore("bound", store), rank=rank, world_size=3, device_id=device)
    pair = dist.new_group([0, 1])
    if rank < 2:
        for _ in range(2):
            model = net()
            made = optim.SGD(model.parameters(), lr=0.1)
            optimizer = Scheduled().wrap(model, made, process_group=pair)[1]
            for batch in batches(ITERATIONS, 16, 7):
                backward(model, optimizer, batch.cuda())
                optimizer.step()
            optimizer.close()
