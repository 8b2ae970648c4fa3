"""What the tests of this folder rely on: a training that goes wrong by a bit is seen, and so are ranks that fail or hang."""

import os
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

from support.ranks import RankError, Ranks, on_ranks
from support.training import Method, assert_equal, batches, run, same, step


class Wrong(Method):
    """DDP with one mistake."""

    def __init__(self, mistake: str) -> None:
        super().__init__()
        self.mistake = mistake

    def wrap(self, model, optimizer, **ddp):
        super().wrap(model, optimizer, **ddp)
        self.steps, self.plain = 0, optimizer.step
        if self.mistake == "a buffer of each rank's own":
            model.get_buffer("1.running_mean").add_(dist.get_rank())
            self.model.broadcast_buffers = False
        optimizer.step = self.step
        return (model if self.mistake == "nothing is reduced" else self.model), optimizer

    def step(self):
        self.steps += 1
        weight = self.raw.get_parameter("0.weight")
        if self.mistake == "a gradient is summed in another order":
            weight.grad[0, 0] = torch.nextafter(weight.grad[0, 0], torch.tensor(1e9))
        if self.mistake == "a weight is late by an iteration" and self.steps == 3:
            stale = weight.detach().clone()
            self.plain()
            self.fresh = weight.detach().clone()
            weight.data.copy_(stale)
            return
        if self.mistake == "a weight is late by an iteration" and self.steps == 4:
            weight.data.copy_(self.fresh)
        self.plain()
        if self.mistake == "a state is one step behind" and self.steps == 5:
            self.optimizer.state[weight]["momentum_buffer"].mul_(0.9)
        if self.mistake == "a gradient is lost after the step":
            weight.grad = None


def training(method):
    model, optimizer = method.wrap(net := nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)), momentum(net))
    for batch in batches(5, 4, 6):
        yield step(model, optimizer, batch)


def momentum(net):
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


@pytest.mark.parametrize(
    "mistake",
    [
        "nothing is reduced",
        "a buffer of each rank's own",
        "a gradient is summed in another order",
        "a weight is late by an iteration",
        "a state is one step behind",
        "a gradient is lost after the step",
    ],
)
@on_ranks(2)
def test_a_mistake_is_seen(mistake):
    try:
        same(training, Wrong(mistake))
    except AssertionError as found:
        seen = torch.tensor([1.0 if "differences" in str(found) else 0.0])
    else:
        seen = torch.tensor([0.0])
    dist.all_reduce(seen)
    assert seen > 0, "no rank saw it"


@on_ranks(2)
def test_ddp_is_equal_to_itself():
    same(training, Method())
    assert_equal(run(training, Method()), run(training, Wrong("none")), "a method that only counts")


# What the next test runs on ranks of its own.


def fails_on_one(folder):
    if dist.get_rank() == 1:
        raise ValueError("as planned")
    dist.barrier()


def hangs_on_one(folder):
    while dist.get_rank() == 1:
        time.sleep(1)


def dies_on_one(folder):
    if dist.get_rank() == 1:
        os._exit(3)
    dist.barrier()


def says_who(folder):
    return dist.get_rank(), dist.get_world_size()


@pytest.mark.parametrize(
    "fault, timeout, part",
    [(fails_on_one, 60, "as planned"), (hangs_on_one, 1, "rank 1 did not answer"), (dies_on_one, 60, "rank 1 did not answer")],
)
def test_ranks_that_fail_are_named_and_replaced(fault, timeout, part, tmp_path):
    own = Ranks(2)
    try:
        assert own.call(__file__, "says_who", {"folder": tmp_path}, 60) == [(0, 2), (1, 2)]
        first = list(own.processes)
        with pytest.raises(RankError, match=part):
            own.call(__file__, fault.__name__, {"folder": tmp_path}, timeout)
        assert all(process.exitcode is not None for process in first)
        assert own.call(__file__, "says_who", {"folder": tmp_path}, 60) == [(0, 2), (1, 2)]
    finally:
        own.close()
