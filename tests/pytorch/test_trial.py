"""A job that is faster with DistributedDataParallel alone goes on with it: when both are tried, how it decides, and what values are."""

import logging
import os

import pytest
import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel

from prophet_mx.torch import trial
from prophet_mx.torch.trial import AFTER, BLOCK, PAUSE, RESUME, RUNNING, SETTLING, TURNS, Times, Turns
from support.ranks import on_ranks
from support.training import Method, Scheduled, ScheduledDDP, assert_equal, assert_same_on_all_ranks, batches, run, step

OVER = AFTER + 2 * TURNS * BLOCK  # iterations with a plan
ITERATIONS = OVER + 20


def test_blocks_take_turns_and_the_first_iterations_of_each_do_not_count():
    turns, now, asked = Turns(), 0.0, []
    for number in range(OVER):
        block = (number - AFTER) // BLOCK
        place = (number - AFTER) % BLOCK
        now += 50.0 if number < AFTER or place < SETTLING else (2.0, 1.0)[block % 2] + block / 10 + place / 100
        asked.append(turns.iteration_ends(now))
    assert {number + 1: what for number, what in enumerate(asked) if what != RUNNING} == {
        AFTER + BLOCK: PAUSE,
        AFTER + 2 * BLOCK: RESUME,
        AFTER + 3 * BLOCK: PAUSE,
        AFTER + 4 * BLOCK: RESUME,
    }
    times = turns.times()
    assert times.scheduled == pytest.approx([2.055, 2.255]) and times.ddp == pytest.approx([1.155, 1.355])


@pytest.mark.parametrize(
    "scheduled, ddp, faster",
    [([1.0, 1.0], [0.9, 0.9], True), ([1.0, 1.0], [0.995, 0.995], False), ([1.0, 1.2], [1.1, 0.6], False), ([1.0, 1.0], [2.0, 2.0], False)],
    ids=["in all turns", "by too little", "in one turn", "never"],
)
def test_ddp_must_be_faster_in_all_turns(scheduled, ddp, faster):
    assert Times(scheduled, ddp).ddp_is_faster() == faster


# --- jobs ---


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append((record.levelname, record.getMessage()))


class Tried(ScheduledDDP):
    """A job whose trial ends as ``faster`` says; ``seen`` are its statistics."""

    slow = 0.0

    def __init__(self, faster, **options):
        super().__init__(unit="auto", **options)
        self.faster, self.seen = faster, {}

    def wrap(self, model, optimizer, **ddp):
        wrapped = super().wrap(model, optimizer, **ddp)
        held = self.optimizer._schedule.trial
        if held is not None:
            held._agreed = lambda mine: Times([2.0] * len(mine.ddp), [1.0 if self.faster else 3.0] * len(mine.ddp))
        return wrapped

    def check(self):
        super().check()
        self.seen = self.optimizer.stats()
        self.planned = True


def net():
    return nn.Sequential(nn.Linear(7, 40), nn.Tanh(), nn.Linear(40, 33), nn.BatchNorm1d(33), nn.ReLU(), nn.Linear(33, 3, bias=False))


@pytest.mark.parametrize("bucket_view", [False, True], ids=["", "bucket views"])
@on_ranks(2, timeout=120)
def test_two_ranks_bit_for_bit(bucket_view):
    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, optim.Adam(model.parameters(), lr=0.01), gradient_as_bucket_view=bucket_view)
        for number, batch in enumerate(batches(ITERATIONS, 4, 7)):
            if number % 7 == 3:  # gradients of two backward passes
                with method.no_sync():
                    forward(batch).square().mean().backward()
                    forward(batch * 2).square().mean().backward()
            loss = forward(batch).square().mean()
            loss.backward()
            if number % 5 == 1:
                yield nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            if number % 3 != 2:
                optimizer.zero_grad(set_to_none=number % 2 == 0)
            if number % 11 == 0:
                model.eval()
                with torch.no_grad():
                    yield forward(batch)
                model.train()
            yield loss

    expected = run(training, Method())
    for faster in (False, True):
        method = Tried(faster)
        assert_equal(expected, run(training, method), f"DDP is faster: {faster}")
        assert method.seen["policy"] == ("off" if faster else "prophet")
        assert method.seen["scheduled_seconds"] == 2.0 and method.seen["ddp_seconds"] == (1.0 if faster else 3.0)


def training(method, iterations=ITERATIONS):
    model = net()
    forward, optimizer = method.wrap(model, optim.SGD(model.parameters(), lr=0.05))
    for batch in batches(iterations, 4, 7):
        yield step(forward, optimizer, batch)


@on_ranks(2, timeout=120)
def test_the_first_turn_that_the_schedule_wins_is_the_last():
    for faster in (False, True):
        method = Tried(faster)
        run(lambda each: training(each, OVER - BLOCK), method)  # the second turn is not over
        assert ("scheduled_seconds" in method.seen) == (not faster) and method.seen["policy"] == "prophet"


class Adopted(Tried):
    """A DDP that is put around the scheduled module."""

    def wrap(self, model, optimizer, **ddp):
        super().wrap(model, optimizer, **ddp)
        self.model = DistributedDataParallel(model, **ddp)
        return self.model, self.optimizer

    def distributed(self, model, ddp):
        return model


@on_ranks(2, timeout=120)
def test_a_ddp_that_is_met_later_is_tried_as_well():
    expected = run(training, Method())
    for faster in (False, True):
        method = Adopted(faster)
        assert_equal(expected, run(training, method), f"DDP is faster: {faster}")
        assert method.seen["policy"] == ("off" if faster else "prophet")


@on_ranks(2, timeout=120)
def test_ddp_goes_on_with_16_bits_as_well():
    kept, tried = Tried(True, compress="bf16", fallback="off"), Tried(True, compress="bf16")
    assert_equal(run(training, kept), run(training, tried), "with 16 bits")
    assert kept.seen["policy"] == "prophet" and tried.seen["policy"] == "off"


@on_ranks(2, timeout=120)
def test_after_the_end_ddp_sends_all_bits_again():
    """It has had a hook for the trial, which cannot be taken away."""

    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, optim.SGD(model.parameters(), lr=0.05))
        for batch in batches(ITERATIONS, 4, 7):
            step(forward, optimizer, batch)
        if isinstance(method, Tried):
            optimizer.close()
            assert optimizer.stats()["policy"] == "prophet"
        for each, value in zip(model.parameters(), torch.linspace(-1, 1, 7)):
            each.detach().fill_(value)
        for batch in batches(4, 4, 7):
            yield step(forward, optimizer, batch)
        yield [each.grad for each in model.parameters()]

    expected, got = run(training, Method()), run(training, Tried(False, compress="bf16"))
    assert_equal(expected[:-1], got[:-1], "after close()")


@on_ranks(2, timeout=120)
def test_the_job_says_so_and_a_plain_module_is_never_tried():
    lines, logger = Lines(), logging.getLogger("prophet_mx")
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)

    def said(method):
        lines.lines.clear()
        run(training, method)
        return [(level, line) for level, line in lines.lines if "DistributedDataParallel alone" in line]

    try:
        [(level, line)] = said(Tried(True))
        assert level == ("WARNING" if dist.get_rank() == 0 else "INFO")
        assert line.startswith("an iteration takes 2000.0 ms, with DistributedDataParallel alone 1000.0 ms: the job goes on with it alone")
        assert said(Tried(False)) == [("INFO", "an iteration takes 2000.0 ms, with DistributedDataParallel alone 3000.0 ms")]
        assert said(Tried(True, fallback="off")) == said(Scheduled()) == []
        os.environ["PROPHET_FALLBACK"] = "off"
        assert said(Tried(True)) == []
    finally:
        os.environ.pop("PROPHET_FALLBACK", None)
        logger.removeHandler(lines)


@on_ranks(2, timeout=120)
def test_a_schedule_that_is_slower_ends():
    """Its collectives are late by more than an iteration; DistributedDataParallel's are not."""

    class Slow(ScheduledDDP):
        slow = 0.01

        def check(self):
            self.planned, self.seen = True, self.optimizer.stats()

    slow = Slow()
    expected = run(training, Method())
    assert_equal(expected, run(training, slow), "it ends")
    assert slow.seen["policy"] == "off"
    assert 1 - slow.seen["ddp_seconds"] / slow.seen["scheduled_seconds"] > trial.MARGIN


class Asked(Tried):
    """ScheduledOptimizer itself is told of unused parameters; its DDP is not."""

    def wrap(self, model, optimizer, **ddp):
        self.options.update(ddp)
        return super().wrap(model, optimizer)


@on_ranks(2, timeout=120)
def test_a_ddp_that_cannot_do_the_same_is_not_tried():
    def training(method):
        model = nn.ModuleList([nn.Linear(7, 7), nn.Linear(7, 7)])
        model.forward = lambda batch, both: model[1](model[0](batch)) if both else model[0](batch)
        forward, optimizer = method.wrap(model, optim.SGD(model.parameters(), lr=0.05), find_unused_parameters=True)
        for number, batch in enumerate(batches(ITERATIONS, 4, 7)):
            optimizer.zero_grad()
            forward(batch, number % 3 == 1 + dist.get_rank()).square().mean().backward()
            optimizer.step()
            yield [each.detach() for each in model.parameters()]

    method = Asked(True)
    assert_equal(run(training, Method()), run(training, method), "with unused parameters")
    assert method.seen["policy"] == "prophet"


@on_ranks(2, timeout=120)
def test_a_ddp_that_is_not_called_is_not_tried():
    """The module inside is: its gradients are reduced by the schedule alone."""
    method = Tried(True)
    model = nn.Linear(7, 3)
    _, optimizer = method.wrap(model, optim.SGD(model.parameters(), lr=0.05))
    for batch in batches(ITERATIONS, 4, 7):
        step(model, optimizer, batch)
    assert_same_on_all_ranks([model.weight])
    method.close()
    assert method.seen["policy"] == "prophet"


@pytest.mark.parametrize("rank", [None, 0], ids=["on all ranks", "on one rank"])
@on_ranks(2, timeout=120)
def test_parameters_that_are_unfrozen_later(rank):
    """DDP would train them by gradients that are not reduced: in its turns nobody does, and the job does not go on with it."""
    method, model = Tried(True), nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 3))
    model[0].requires_grad_(False)
    forward, optimizer = method.wrap(model, optim.SGD(model.parameters(), lr=0.05))
    paused = 0
    for number, batch in enumerate(batches(ITERATIONS, 4, 7)):
        if number == AFTER + BLOCK and rank in (None, dist.get_rank()):
            model[0].requires_grad_(True)
        step(forward, optimizer, batch)
        paused += optimizer._exchange.paused
        assert_same_on_all_ranks([model[0].weight])
    method.close()
    assert method.seen["policy"] == "prophet" and "ddp_seconds" not in method.seen
    assert paused == BLOCK


@on_ranks(2, timeout=120)
def test_parameters_of_another_optimizer():
    """It is not scheduled, and takes the sums as they are."""

    def training(method):
        model = net()
        second = optim.Adam(model[5].parameters(), lr=0.01)
        forward, optimizer = method.wrap(model, optim.SGD(model[:4].parameters(), lr=0.05))
        for batch in batches(ITERATIONS, 4, 7):
            second.zero_grad()
            yield step(forward, optimizer, batch)
            second.step()
        yield second.state_dict()

    expected = run(training, Method())
    for faster in (False, True):
        assert_equal(expected, run(training, Tried(faster)), f"DDP is faster: {faster}")
