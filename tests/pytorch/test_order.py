"""All ranks start collectives in one order, by a backend that checks it: within each group, and across groups, as NCCL needs it."""

import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from prophet_mx.torch import ScheduledOptimizer, agreement
from support import ordered, training
from support.ordered import OrderError, Started, check
from support.ranks import ranks

WIDTH = 24
WARMUP, UNIT = 2, 1024
LOOK = WARMUP + agreement.FIRST_LOOK  # the iteration of the first look at the plan's numbers, counted from 1
LATE = 0.04  # seconds: by then the other rank has started some collectives more


# --- trainings, on every rank ---


def net(buffers):
    return nn.Sequential(nn.Linear(WIDTH, 60), nn.BatchNorm1d(60) if buffers else nn.Tanh(), nn.Linear(60, WIDTH), nn.Linear(WIDTH, 2))


def train(iterations, late, buffers=False, ddp=False, look=False, **options):
    """What this rank starts in a training. Rank 1 comes late: to ``forward`` or to ``step``. ``look``: also for looks at the numbers."""
    before, agreement.FIRST_LOOK = agreement.FIRST_LOOK, agreement.FIRST_LOOK if look else 10**6
    group = ordered.begin()
    unused = options.pop("unused", False)
    raw = net(buffers)
    given = {"process_group": group, "find_unused_parameters": unused}
    model = DistributedDataParallel(raw, **given) if ddp else raw
    sgd = torch.optim.SGD(raw.parameters(), lr=0.1)
    options = {"warmup": WARMUP, "unit": UNIT, **options}
    optimizer = ScheduledOptimizer(model, sgd, **options, **({} if ddp else given))
    try:
        for batch in training.batches(iterations, 4, WIDTH):
            if late == "forward" and dist.get_rank():
                time.sleep(LATE)
            training.backward(model, optimizer, batch)
            if late == "step" and dist.get_rank():
                time.sleep(LATE)
            optimizer.step()
        optimizer.synchronize()
        planned = optimizer.stats()["plans"] > 0
    finally:
        agreement.FIRST_LOOK = before
        optimizer.close()
    assert planned
    return ordered.log.started


def swap():
    """Rank 1 starts the collectives of two groups in another order. Gloo does not mind."""
    groups = [ordered.begin(), dist.new_group(backend=ordered.NAME)]
    for group in groups[:: -1 if dist.get_rank() else 1]:
        works = [dist.all_reduce(torch.ones(10), group=group, async_op=True)]
    for work in works:
        work.wait()
    dist.barrier()
    return ordered.log.started


def logs_of(function, **arguments):
    """By rank, what it has started."""
    return ranks(2).call(__file__, function.__name__, arguments, 60)


# --- the check ---

FINE = [Started(1, "allreduce", 400), Started(2, "broadcast", 8), Started(1, "allreduce", 80)]


@pytest.mark.parametrize(
    "other",
    [[FINE[1], FINE[0], FINE[2]], FINE[:2], [*FINE, FINE[0]], [FINE[0], FINE[1], Started(1, "allreduce", 84)]],
    ids=["in another order", "one less", "one more", "of another size"],
)
def test_the_check_refuses_ranks_that_differ(other):
    check([FINE, FINE])
    with pytest.raises(OrderError, match=r"on rank 0 .*; on rank 1 "):
        check([FINE, other])


def test_two_groups_in_another_order_are_refused_although_each_is_right():
    logs = logs_of(swap)
    check(logs, within=0)
    check(logs, within=1)
    with pytest.raises(OrderError, match="number 0 is: on rank 0 allreduce of 40 bytes in group 0 .* on rank 1 allreduce .* in group 1"):
        check(logs)


# --- within a group ---

CASES = {
    "buffers": {"iterations": LOOK + 2, "late": "forward", "buffers": True, "look": True},
    "a late step": {"iterations": LOOK + 2, "late": "step", "look": True},
    "DDP": {"iterations": LOOK + 2, "late": "forward", "buffers": True, "ddp": True, "look": True, "fallback": "off"},
    "unused parameters": {"iterations": LOOK + 2, "late": "step", "unused": True, "look": True},
    "16 bits": {"iterations": LOOK + 2, "late": "step", "compress": "bf16", "look": True},
}


@pytest.mark.parametrize("case", CASES)
def test_within_each_group_there_is_one_order(case):
    """However late a rank is. Gradients are started by one thread, all else by the program's."""
    logs = logs_of(train, **CASES[case])
    numbers = {each.group for each in logs[0]}
    assert len(numbers) == 2 + ("ddp" in CASES[case])
    for number in numbers:
        check(logs, within=number)
    for started in logs:
        assert {each.thread for each in started} == {"MainThread", "prophet_mx-reduce"}
        by_thread = [each for each in started if each.thread != "MainThread"]
        assert {(each.group, each.operation) for each in by_thread} == {(1, "allreduce")} and len(by_thread) > 3 * LOOK
    assert any(each.beside for started in logs for each in started), "nothing was under way at once: this tested nothing"


# --- across groups ---


@pytest.mark.parametrize("late", ["forward", "step"])
def test_gradients_alone_have_one_order_across_groups(late):
    logs = logs_of(train, iterations=LOOK, late=late)
    check(logs)


@pytest.mark.parametrize("late", ["forward", "step"])
def test_turns_of_ddp_and_of_the_schedule_have_one_order_across_groups(late):
    """Each begins when the other has nothing under way."""
    logs = logs_of(train, iterations=WARMUP + 56, late=late, ddp=True, unit=100_000)
    assert {each.thread for each in logs[0] if each.group == 0 and each.operation == "allreduce"}  # DDP has reduced as well
    assert not [each for each in logs[0] if each.beside]
    check(logs)


KNOWN = "buffers, and rank 0's looks at its numbers, travel beside gradients in no common order, which matters with NCCL"


@pytest.mark.xfail(raises=OrderError, reason=KNOWN)
@pytest.mark.parametrize("case", CASES)
def test_there_is_one_order_across_groups(case):
    check(logs_of(train, **CASES[case]))
