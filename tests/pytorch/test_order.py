"""All ranks start collectives in one order, by a backend that checks it: within each group, and across groups, as NCCL needs it."""

import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from prophet_mx import ConfigError
from prophet_mx.torch import ScheduledOptimizer, agreement, modules
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
    assert numbers == {0, 1}
    if "ddp" not in CASES[case]:  # in the program's own group ranks agree on names of groups, before there are others
        groups = [each.group for each in logs[0]]
        assert groups == sorted(groups)
    for number in numbers:
        check(logs, within=number)
    for started in logs:
        assert {each.thread for each in started} == {"MainThread", "prophet_mx-reduce"}
        by_thread = [each for each in started if each.thread != "MainThread"]
        assert {(each.group, each.operation) for each in by_thread} == {(1, "allreduce")} and len(by_thread) > 3 * LOOK


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


@pytest.mark.parametrize("case", CASES)
def test_there_is_one_order_across_groups(case):
    """Buffers, and rank 0's looks at its numbers, travel beside gradients by gloo, as it needs no common order of groups."""
    logs = logs_of(train, **CASES[case])
    check(logs)
    assert not [each for each in logs[0] if each.beside]


def buffers_as_bytes():
    """As those of an accelerator travel: of several types and strides, and empty ones."""
    rank = dist.get_rank()
    buffers = [
        torch.arange(7.0) + rank,
        torch.tensor(5 + rank),
        torch.full((3, 2), rank == 1).t(),
        torch.ones(2, 3, dtype=torch.bfloat16).t() * rank,
    ]
    buffers.append(torch.empty(0))
    modules.broadcast_from_accelerator(buffers, dist.group.WORLD)
    return [each.tolist() for each in buffers]


def test_buffers_of_an_accelerator_are_those_of_rank_0():
    one, other = logs_of(buffers_as_bytes)
    assert one == other == [[0, 1, 2, 3, 4, 5, 6], 5, [[False] * 3] * 2, [[0.0] * 2] * 3, []]


def refusals():
    """What two errors say."""
    group, said = ordered.begin(), []
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = ScheduledOptimizer(first, torch.optim.SGD(first.parameters(), lr=0.1), process_group=group)
    for model in (second, nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2))):
        with pytest.raises(ConfigError) as refused:
            ScheduledOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1), process_group=group)
        said.append(str(refused.value))
        optimizer.close()
    return said


def test_what_has_no_order_is_refused():
    for said in logs_of(refusals):
        assert "another ScheduledOptimizer is open, and ordered needs one order" in said[0]
        assert "module '1' is a SyncBatchNorm" in said[1]


def own():
    """Collectives of the program's own, where docs/pytorch.md says that they may be."""
    group = ordered.begin()
    model = net(False)
    optimizer = ScheduledOptimizer(
        model, torch.optim.SGD(model[0].parameters(), lr=0.1), process_group=group, find_unused_parameters=True, warmup=WARMUP, unit=UNIT
    )
    for batch in training.batches(LOOK, 4, WIDTH):
        training.step(model, optimizer, batch)
        if dist.get_rank():
            time.sleep(LATE)
        optimizer.synchronize()
        dist.all_reduce(torch.ones(10), group=group)
    optimizer.close()
    return ordered.log.started


def test_collectives_of_the_program_after_synchronize_have_an_order():
    """Also where not all parameters are in the optimizer, and where ranks tell which they have used."""
    logs = logs_of(own)
    check(logs)
    assert {each.group for each in logs[0]} == {0, 1} and not [each for each in logs[0] if each.beside]


def several():
    """Two optimizers of one model, whose steps the ranks take in different orders; once there is no plan yet, and once there is."""
    before, agreement.FIRST_LOOK = agreement.FIRST_LOOK, 4
    group, model = ordered.begin(), net(True)
    given = {"process_group": group, "warmup": WARMUP, "unit": UNIT}
    both = [ScheduledOptimizer(model, torch.optim.SGD(part.parameters(), lr=0.1), **given) for part in (model[:2], model[2:])]
    try:
        for batch in training.batches(LOOK, 4, WIDTH):
            both[1].zero_grad()
            training.backward(model, both[0], batch)
            for optimizer in both[:: -1 if dist.get_rank() else 1]:
                time.sleep(LATE * dist.get_rank())
                optimizer.step()
        both[1].synchronize()
        training.assert_same_on_all_ranks(model.parameters())
        seen = both[1].stats()
        assert seen["plans"] and seen["iterations"] == LOOK, seen
    finally:
        agreement.FIRST_LOOK = before
        both[0].close()
    return ordered.log.started


def test_several_optimizers_of_a_model_have_one_order():
    logs = logs_of(several)
    check(logs)
    assert {each.group for each in logs[0]} == {0, 1}


def a_ddp():
    """The buffers of a scheduled DDP at an evaluation, and what an evaluation after closing it starts."""
    group = ordered.begin()
    model = DistributedDataParallel(net(True), process_group=group)
    optimizer = ScheduledOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for batch in training.batches(4, 4, WIDTH):
        training.step(model, optimizer, batch)
    started = len(ordered.log.started)
    with torch.no_grad():
        model.eval()(torch.ones(2, WIDTH))
    assert "broadcast" not in {each.operation for each in ordered.log.started[started:]}
    buffers = [each.tolist() for each in model.buffers()]
    optimizer.close()
    model.train()(torch.ones(2, WIDTH))
    model.eval()(torch.ones(2, WIDTH))
    return buffers, ordered.log.started[-1].operation


def test_a_ddp_has_rank_0s_buffers_and_sends_them_itself_after_closing():
    one, other = logs_of(a_ddp)
    assert one == other and one[1] == "broadcast"
