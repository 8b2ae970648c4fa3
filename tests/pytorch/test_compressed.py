"""16 bits on the wire: the weights of DistributedDataParallel with its hook of the same kind, half the bytes, and what is refused."""

import logging
import os

import pytest
import torch
import torch.distributed as dist
from torch import nn, optim
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, bf16_compress_hook, fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from prophet_mx.errors import ConfigError
from prophet_mx.torch import ScheduledOptimizer
from support.ranks import on_ranks
from support.training import Hooked, Method, Scheduled, ScheduledDDP, assert_equal, assert_same_on_all_ranks, batches, register, run, step

ITERATIONS = 8
HOOKS = {"bf16": bf16_compress_hook, "fp16": fp16_compress_hook}
WIDTH = 30


class ScheduledHooked(ScheduledDDP):
    """ScheduledOptimizer around a DDP that has a hook; ``compress`` is not given."""

    def __init__(self, hook):
        super().__init__()
        self.hook = hook

    def distributed(self, model, ddp):
        model = super().distributed(model, ddp)
        register(model, self.hook)
        return model


def net():
    """Gradients smaller than a unit and larger."""
    return nn.Sequential(nn.Linear(7, 40), nn.Tanh(), nn.Linear(40, 33), nn.BatchNorm1d(33), nn.ReLU(), nn.Linear(33, 3, bias=False))


def compare(training, name):
    expected = run(training, Hooked(HOOKS[name]))
    for method in (Scheduled(compress=name), ScheduledDDP(compress=name), ScheduledHooked(HOOKS[name])):
        assert_equal(expected, run(training, method), f"{type(method).__name__} {method.options}")
    return expected


@pytest.mark.parametrize("name", HOOKS)
@on_ranks(2, timeout=120)
def test_two_ranks_bit_for_bit(name):
    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, optim.Adam(model.parameters(), lr=0.01))
        for number, batch in enumerate(batches(2 * ITERATIONS, 4, 7)):
            scale = 10.0 ** -(number % 8)  # in fp16 the smallest have no full precision, or vanish
            if number % 4 == 3:
                with method.no_sync():
                    forward(batch).square().mean().backward()
                continue
            optimizer.zero_grad()
            (forward(batch) * scale).square().mean().backward()
            optimizer.step()
            yield [param.grad for param in model.parameters()]

    compressed = compare(training, name)
    with pytest.raises(AssertionError, match="elements, by up to"):
        assert_equal(run(training, Method()), compressed, "it makes a difference")


@pytest.mark.parametrize("name", HOOKS)
@on_ranks(2, timeout=120)
def test_other_types_of_numbers_and_unused_parameters_bit_for_bit(name):
    def training(method):
        model = nn.ModuleList(
            [nn.Linear(6, WIDTH).double(), nn.Linear(6, WIDTH).bfloat16(), nn.Linear(6, WIDTH).half(), nn.Linear(6, WIDTH)]
        )

        class Some(nn.Module):
            def __init__(self):
                super().__init__()
                self.parts = model

            def forward(self, batch, left_out):
                return sum(
                    part(batch.to(part.weight.dtype)).float().square().mean() for place, part in enumerate(self.parts) if place != left_out
                )

        some = Some()
        forward, optimizer = method.wrap(some, optim.SGD(some.parameters(), lr=0.1, momentum=0.9), find_unused_parameters=True)
        for number, batch in enumerate(batches(ITERATIONS, 4, 6)):
            optimizer.zero_grad()
            forward(batch, (number + dist.get_rank() * (number % 3)) % 5).backward()
            optimizer.step()
            yield [param.grad for param in some.parameters()]

    compare(training, name)


@pytest.mark.parametrize("size", [3])
def test_more_ranks_have_equal_weights(size):
    on_ranks(size)(equal_weights)()


def equal_weights():
    model = net()
    optimizer = ScheduledOptimizer(model, optim.SGD(model.parameters(), lr=0.1), compress="bf16", warmup=2)
    for batch in batches(ITERATIONS, 4, 7):
        step(model, optimizer, batch)
    assert_same_on_all_ranks(model.parameters())
    optimizer.close()


@on_ranks(2)
def test_half_the_bytes_travel_and_are_planned():
    def seen(**settings):
        model = nn.Linear(100, 100, bias=False)
        optimizer = ScheduledOptimizer(model, optim.SGD(model.parameters(), lr=0.1), warmup=2, unit=2000, **settings)
        for batch in batches(ITERATIONS, 4, 100):
            step(model, optimizer, batch)
        optimizer.synchronize()
        stats = optimizer.stats()
        optimizer.close()
        return stats["bytes"], stats["planned_units"], stats["unit_bytes"], stats["compress"]

    assert seen() == (ITERATIONS * 40000, 20, 2000, "off")
    for name in HOOKS:
        assert seen(compress=name) == (ITERATIONS * 20000, 10, 2000, name)
    os.environ["PROPHET_COMPRESS"] = "bf16"
    try:
        assert seen()[-1] == "bf16" and seen(compress="off")[-1] == "off"
    finally:
        del os.environ["PROPHET_COMPRESS"]


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


@on_ranks(2)
def test_the_log_says_so_once():
    lines, logger = Lines(), logging.getLogger("prophet_mx")
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    try:
        for settings in ({}, {"compress": "bf16"}):
            model = net()
            optimizer = ScheduledOptimizer(model, optim.SGD(model.parameters(), lr=0.1), warmup=2, **settings)
            for batch in batches(ITERATIONS, 4, 7):
                step(model, optimizer, batch)
            optimizer.close()
    finally:
        logger.removeHandler(lines)
    said = [line for line in lines.lines if "bfloat16" in line]
    assert len(said) == (1 if dist.get_rank() == 0 else 0)


# --- hooks ---


def close(optimizer):
    """Once all ranks have all groups: where one closes a group, another may still be connecting."""
    dist.barrier()
    optimizer.close()


@on_ranks(2)
def test_a_hook_that_comes_too_late_is_refused():
    model = DistributedDataParallel(net())
    optimizer = ScheduledOptimizer(model, optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ConfigError, match="bf16_compress_hook.* before"):
        model.register_comm_hook(None, bf16_compress_hook)
    with pytest.raises(ConfigError, match="FP16_COMPRESS.* before"):
        model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    close(optimizer)
    register(model, bf16_compress_hook)  # it is DDP's own again


@on_ranks(2)
def test_a_hook_that_is_not_known_is_refused():
    def refused(match, state=None, hook=bf16_compress_hook, **settings):
        model = DistributedDataParallel(net())
        register(model, hook, state)
        with pytest.raises(ConfigError, match=match):
            ScheduledOptimizer(model, optim.SGD(model.parameters(), lr=0.1), **settings)

    refused("allreduce_hook", hook=allreduce_hook)
    refused("compress='fp16'.*bf16_compress_hook", compress="fp16")
    alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    refused("another group", state=alone)
    everybody = dist.new_group()
    model = DistributedDataParallel(net())
    register(model, bf16_compress_hook, everybody)
    optimizer = ScheduledOptimizer(model, optim.SGD(model.parameters(), lr=0.1))
    assert optimizer.stats()["compress"] == "bf16"
    close(optimizer)


@on_ranks(2)
def test_a_built_in_hook_is_known_as_well():
    model = DistributedDataParallel(net())
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    optimizer = ScheduledOptimizer(model, optim.SGD(model.parameters(), lr=0.1))
    assert optimizer.stats()["compress"] == "fp16"
    close(optimizer)
    model = DistributedDataParallel(net())
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    with pytest.raises(ConfigError, match="ALLREDUCE"):
        ScheduledOptimizer(model, optim.SGD(model.parameters(), lr=0.1))


@on_ranks(2)
def test_ddp_itself_compresses_where_nothing_is_scheduled():
    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, optim.SGD(model.parameters(), lr=0.1))
        for batch in batches(ITERATIONS, 4, 7):
            yield step(forward, optimizer, batch)

    class Off(ScheduledDDP):
        slow = 0

        def check(self):
            self.planned = True

    expected = run(training, Hooked(bf16_compress_hook))
    assert_equal(expected, run(training, Off(policy="off", compress="bf16")), "policy='off'")


@on_ranks(2)
def test_ranks_with_different_settings_are_refused():
    model = net()
    with pytest.raises(ConfigError, match="different settings"):
        ScheduledOptimizer(model, optim.SGD(model.parameters(), lr=0.1), compress=("off", "bf16")[dist.get_rank()])


@on_ranks(2)
def test_complex_numbers_are_refused():
    model = nn.Linear(3, 3).to(torch.complex64)
    with pytest.raises(ConfigError, match="'weight' is complex"):
        ScheduledOptimizer(model, optim.SGD(model.parameters(), lr=0.1), compress="bf16")
