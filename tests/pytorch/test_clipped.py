"""Gradients that are clipped by their norm in every iteration travel in halves, and all that can be seen is as with DDP."""

import contextlib
import platform
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn, optim
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.nn.utils import clip_grad_norm_

from prophet_mx.planning import rounds
from prophet_mx.planning.rounds import HALVES, TOGETHER, URGENT
from prophet_mx.torch import ScheduledOptimizer, agreement
from prophet_mx.torch.norms import divisible
from support.ranks import on_ranks
from support.sent import written
from support.training import METHODS, Hooked, Scheduled, ScheduledDDP, assert_equal, assert_same_on_all_ranks, backward, batches, run, same

ITERATIONS = 8
LIMIT = 0.05


def net(width=24):
    """Gradients that are cut, and small ones that share units; the first is larger than a rank's share."""
    return nn.Sequential(nn.Linear(width, 90), nn.Tanh(), nn.Linear(90, 20), nn.LayerNorm(20), nn.Linear(20, 20), nn.Linear(20, 3))


def in_halves(method):
    """Whether the rounds of a scheduled training are in halves at its end."""
    return method.optimizer._exchange.rounds.norms is not None


def expect_halves(method, expected=True):
    if isinstance(method, Scheduled):
        assert in_halves(method) is expected


def whatever_is_owned():
    """Jobs in halves, also where all ranks reduce most bytes."""
    return mock.patch.object(rounds, "LEAST_OWNED", 0.0)


def clipped(model, limit=LIMIT, **options):
    return clip_grad_norm_(model.parameters(), limit, **options)


def overlapping(clipping="overlap", **options):
    return [make(clipping=clipping, **options) for make in METHODS.values()]


CLIPPING = pytest.mark.parametrize("clipping", ["overlap", "wait"])


OPTIMIZERS = {
    "SGD": lambda params: optim.SGD(params, lr=0.1, momentum=0.9),
    "AdamW": lambda params: optim.AdamW(params, lr=0.01),
    "AdamW foreach": lambda params: optim.AdamW(params, lr=0.01, foreach=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("foreach", [None, True, False])
@on_ranks(2, timeout=120)
def test_bit_for_bit(name, foreach):
    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, OPTIMIZERS[name](model.parameters()))
        for number, batch in enumerate(batches(2 * ITERATIONS, 4, 24)):
            yield backward(forward, optimizer, batch)
            yield clipped(model, LIMIT if number % 3 else 100.0, foreach=foreach)
            optimizer.step()
        expect_halves(method)

    same(training, *overlapping())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@on_ranks(2, timeout=120)
def test_a_rank_that_has_no_norm_to_compute(bias, dtype):
    """The weight is more than a rank's share."""

    def training(method):
        model = nn.Linear(24, 3, bias=bias, dtype=dtype)
        forward, optimizer = method.wrap(model, optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        for batch in batches(2 * ITERATIONS, 4, 24):
            yield backward(forward, optimizer, batch.to(dtype))
            yield clipped(model)
            optimizer.step()
        expect_halves(method)

    with whatever_is_owned():
        same(training, *overlapping())


@on_ranks(2, timeout=120)
def test_other_types_of_numbers():
    def training(method):
        model = nn.ModuleList([nn.Linear(24, 40).double(), nn.Linear(24, 40).bfloat16(), nn.Linear(24, 40)])

        class All(nn.Module):
            def __init__(self):
                super().__init__()
                self.parts = model

            def forward(self, batch):
                return sum(part(batch.to(part.weight.dtype)).float() for part in self.parts)

        every = All()
        forward, optimizer = method.wrap(every, optim.SGD(every.parameters(), lr=0.1))
        for batch in batches(ITERATIONS, 4, 24):
            yield backward(forward, optimizer, batch)
            yield clipped(every)
            optimizer.step()
        expect_halves(method)

    with whatever_is_owned():
        same(training, *overlapping())


@pytest.mark.parametrize("strange", ["dtype", "strides", "bits"])
@on_ranks(2, timeout=120)
def test_one_gradient_that_is_most_of_all_and_has_no_parts_is_waited_for(strange):
    """As PyTorch finds its norm in another way, perhaps on one rank only."""

    def training(method):
        model = nn.Linear(200, 3, dtype=torch.float64 if strange == "dtype" else None)
        if strange == "strides":
            model.weight = nn.Parameter(model.weight.detach().t().contiguous().t())
        forward, optimizer = method.wrap(model, optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        for batch in batches(ITERATIONS, 4, 200):
            yield backward(forward, optimizer, batch.to(model.weight.dtype))
            yield clipped(model)
            optimizer.step()
        expect_halves(method, False)

    with mock.patch.object(agreement, "divisible", lambda: strange != "bits" or dist.get_rank() > 0):
        same(training, *overlapping())


class Wide(nn.Module):
    """One layer or two have most of all parameters."""

    def __init__(self, spare=False):
        super().__init__()
        self.first, self.wide = nn.Linear(24, 33), nn.Linear(33, 1001)
        self.middle, self.last = nn.Linear(1001, 61), nn.Linear(61, 3)
        self.spare = nn.Linear(24, 6001) if spare else None

    def forward(self, batch, spare=False):
        found = self.last(self.middle(self.wide(self.first(batch).tanh()).tanh()).tanh())
        return found + self.spare(batch).mean() if spare else found


def expect_divided(method):
    """Whether some gradients have several owners at the end of a scheduled training."""
    if isinstance(method, Scheduled):
        assert method.optimizer._exchange.rounds.norms._divided


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="elsewhere PyTorch may add up squares in another order")
def test_squares_are_added_up_in_pytorchs_order():
    assert divisible()


DIVIDED = [{"unit": 16_000}, {"unit": 4_444}, {"unit": 40_000}]


@pytest.mark.parametrize("options", DIVIDED, ids=str)
@pytest.mark.parametrize("foreach", [None, False])
@on_ranks(2, timeout=120)
def test_a_gradient_that_several_ranks_own(options, foreach):
    def training(method):
        model = Wide()
        forward, optimizer = method.wrap(model, optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        for number, batch in enumerate(batches(2 * ITERATIONS, 4, 24)):
            yield backward(forward, optimizer, batch)
            yield clipped(model, LIMIT if number % 3 else 100.0, foreach=foreach)
            optimizer.step()
            if number % 4 == 1:
                yield [each.grad for each in model.parameters()]
        expect_divided(method)

    same(training, *overlapping(**options))


@on_ranks(2, timeout=120)
def test_a_gradient_that_several_ranks_own_and_not_all_use():
    """In some iterations no rank uses it, in others one does."""

    def training(method):
        model = Wide(spare=True)
        forward, optimizer = method.wrap(model, optim.SGD(model.parameters(), lr=0.1), find_unused_parameters=True)
        for number, batch in enumerate(batches(3 * ITERATIONS, 4, 24)):
            optimizer.zero_grad()
            forward(batch, spare=number < 4 or number % 3 == dist.get_rank()).square().mean().backward()
            yield clipped(model)
            optimizer.step()
        expect_divided(method)

    same(training, *overlapping(unit=16_000))


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("options", DIVIDED, ids=str)
def test_the_norm_is_that_of_the_gradients(size, options):
    on_ranks(size, timeout=120)(the_norm_is_that_of_the_gradients)(options=options)


def the_norm_is_that_of_the_gradients(options):
    torch.manual_seed(0)
    model = Wide()
    method = Scheduled(**options)
    forward, optimizer = method.wrap(model, optim.SGD(model.parameters(), lr=0.1))
    for batch in batches(ITERATIONS, 4, 24):
        backward(forward, optimizer, batch)
        norm = clipped(model, 1e9)
        expected = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(each.grad.clone()) for each in model.parameters()]))
        assert norm == expected
        optimizer.step()
    expect_divided(method)
    assert_same_on_all_ranks(model.parameters())
    optimizer.close()


# --- what a program does with gradients besides ---


def reads_before(model, optimizer):
    yield [each.grad for each in model.parameters()]
    yield clipped(model)


def reads_after(model, optimizer):
    yield clipped(model)
    yield [each.grad for each in model.parameters()]


def reads_one_after(model, optimizer):
    yield clipped(model)
    yield next(model.parameters()).grad.abs().max()


def holds(model, optimizer):
    held = [each.grad for each in model.parameters()]
    yield clipped(model)
    optimizer.step()
    yield held
    yield [each.grad for each in model.parameters()]


def clips_twice(model, optimizer):
    yield clipped(model, 0.05)
    yield clipped(model, 0.01)


def clips_parts(model, optimizer):
    for part in model:
        if list(part.parameters()):
            yield clipped(part, 0.01)


def clips_other_norms(model, optimizer):
    yield clipped(model, norm_type=float("inf"))
    yield clipped(model, 0.01)
    yield clipped(model, 0.01, norm_type=1)


def scales_first(model, optimizer):
    for each in model.parameters():
        each.grad.mul_(0.5)
    yield clipped(model)


def scales_after(model, optimizer):
    yield clipped(model)
    for each in list(model.parameters())[::2]:
        each.grad *= 2


def replaces(model, optimizer):
    yield clipped(model)
    first = next(model.parameters())
    first.grad = torch.ones_like(first)


def drops(model, optimizer):
    yield clipped(model)
    next(model.parameters()).grad = None


def calls_by_keyword(model, optimizer):
    first = next(model.parameters())
    yield torch.linalg.vector_norm(x=first.grad)
    first.grad.mul_(other=0.5)
    yield clipped(model)


def multiplies_by_what_is_trained(model, optimizer):
    scale = torch.tensor(0.5, requires_grad=True) * 1
    next(model.parameters()).grad.mul_(scale)
    next(model.parameters()).grad = next(model.parameters()).grad.detach()
    yield clipped(model)


def writes_after_step(model, optimizer):
    held = [each.grad.detach() for each in model.parameters()]
    yield clipped(model)
    optimizer.step()
    for each in held:
        each.zero_()
    optimizer.zero_grad()


def clips_nothing(model, optimizer):
    yield None


def skips(model, optimizer):
    yield clipped(model)
    optimizer.zero_grad()


def zeroes(model, optimizer):
    yield clipped(model)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    yield [each.grad for each in model.parameters()]


def reads_weights(model, optimizer):
    yield clipped(model)
    optimizer.step()
    yield [each.sum() for each in model.parameters()]


def refuses(model, optimizer):
    next(model.parameters()).grad.fill_(float("nan"))
    with pytest.raises(RuntimeError, match="non-finite"):
        clipped(model, error_if_nonfinite=True)
    optimizer.zero_grad()
    yield None


def saves(model, optimizer):
    yield clipped(model)
    optimizer.step()
    yield optimizer.state_dict()
    yield model.state_dict()


WAYS = [reads_before, reads_after, reads_one_after, holds, clips_twice, clips_parts, clips_other_norms, scales_first, scales_after]
WAYS += [calls_by_keyword, multiplies_by_what_is_trained, writes_after_step]
WAYS += [replaces, drops, clips_nothing, skips, zeroes, reads_weights, refuses, saves]


@CLIPPING
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@on_ranks(2, timeout=120)
def test_whatever_a_program_does_with_gradients(way, clipping):
    """In some iterations of a job that clips them in the others."""

    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, optim.Adam(model.parameters(), lr=0.01))
        for number, batch in enumerate(batches(2 * ITERATIONS, 4, 24)):
            yield backward(forward, optimizer, batch)
            if number > 3 and number % 3 == 0:
                yield from way(model, optimizer)
            else:
                yield clipped(model)
            optimizer.step()
        expect_halves(method, clipping == "overlap")

    same(training, *overlapping(clipping))


@CLIPPING
@on_ranks(2, timeout=120)
def test_what_is_read_after_clipping_stays(clipping):
    """The next backward writes where it was."""

    def training(method):
        model, held = net(), []
        forward, optimizer = method.wrap(model, optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        for batch in batches(2 * ITERATIONS, 4, 24):
            yield backward(forward, optimizer, batch)
            yield held
            before = [each.grad for each in list(model.parameters())[::3]]
            yield clipped(model)
            held = [each.detach() for each in before] + [each.view(-1) for each in before]
            held += [each.grad for each in list(model.parameters())[1::3]]
            optimizer.step()
            held += [each.grad for each in list(model.parameters())[2::3]]
        expect_halves(method, clipping == "overlap")

    same(training, *overlapping(clipping))


@CLIPPING
@pytest.mark.parametrize("set_to_none", [True, False])
@on_ranks(2, timeout=120)
def test_accumulated_gradients(set_to_none, clipping):
    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        for number, batch in enumerate(batches(4 * ITERATIONS, 4, 24)):
            with method.no_sync() if number % 2 == 0 else contextlib.nullcontext():
                forward(batch).square().mean().backward()
            if number % 2:
                if number % 4 == 3:  # a second reduced backward in one step
                    forward(batch).square().mean().backward()
                yield clipped(model)
                optimizer.step()
                optimizer.zero_grad(set_to_none)

    same(training, *overlapping(clipping))


@CLIPPING
@on_ranks(2, timeout=120)
def test_unused_parameters(clipping):
    class Some(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList([nn.Linear(24, 40) for _ in range(4)])

        def forward(self, batch, left_out):
            return sum(part(batch).square().mean() for place, part in enumerate(self.parts) if place not in left_out)

    def training(method):
        model = Some()
        forward, optimizer = method.wrap(model, optim.SGD(model.parameters(), lr=0.1, momentum=0.9), find_unused_parameters=True)
        for number, batch in enumerate(batches(2 * ITERATIONS, 4, 24)):
            optimizer.zero_grad()
            left_out = [[], [1, 2], [dist.get_rank()], [0]][number % 4]
            forward(batch, left_out).backward()
            if number % 3 == 0:  # before a round is over in which this rank has used all
                yield next(model.parameters()).grad
            yield clipped(model)
            optimizer.step()
        expect_halves(method, clipping == "overlap")

    same(training, *overlapping(clipping))


@pytest.mark.parametrize("hook", [bf16_compress_hook, fp16_compress_hook], ids=lambda hook: hook.__name__)
@pytest.mark.parametrize("wide", [False, True])
@on_ranks(2, timeout=120)
def test_16_bits_on_the_wire(hook, wide):
    def training(method):
        model = Wide() if wide else net()
        forward, optimizer = method.wrap(model, optim.SGD(model.parameters(), lr=0.1))
        for batch in batches(2 * ITERATIONS, 4, 24):
            yield backward(forward, optimizer, batch)
            yield clipped(model)
            optimizer.step()
        expect_divided(method) if wide else expect_halves(method)

    expected = run(training, Hooked(hook))
    compress = hook.__name__.split("_")[0]
    for method in (Scheduled(compress=compress, clipping="overlap"), ScheduledDDP(compress=compress, clipping="overlap")):
        assert_equal(expected, run(training, method), f"{type(method).__name__} {method.options}")


# --- the plan ---


def reduced_bytes(model, optimizer, inputs, clip):
    """What this rank sends in some iterations."""
    before = None
    for number, batch in enumerate(inputs):
        if number == ITERATIONS:
            optimizer.synchronize()
            before = written()
        backward(model, optimizer, batch)
        if clip:
            clipped(model)
        optimizer.step()
    optimizer.synchronize()
    return written() - before


@pytest.mark.parametrize("size", [2, 3])
def test_no_more_bytes_and_equal_weights(size):
    on_ranks(size, timeout=120)(no_more_bytes_and_equal_weights)()


def no_more_bytes_and_equal_weights():
    sent = {}
    for clip in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(*[nn.Linear(120, 120) for _ in range(6)])
        optimizer = ScheduledOptimizer(model, optim.SGD(model.parameters(), lr=0.1), warmup=2, unit=20_000, clipping="overlap")
        sent[clip] = torch.tensor(float(reduced_bytes(model, optimizer, batches(3 * ITERATIONS, 4, 120), clip)))
        dist.all_reduce(sent[clip])
        assert_same_on_all_ranks(model.parameters())
        optimizer.close()
    assert sent[True] < 1.05 * sent[False]


@on_ranks(2, timeout=120)
def test_a_job_that_begins_to_clip_and_ends_it():
    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, optim.SGD(model.parameters(), lr=0.1))
        for number, batch in enumerate(batches(2 * agreement.FOLLOW_EVERY + 40, 4, 24)):
            yield backward(forward, optimizer, batch)
            if number >= agreement.FOLLOW_EVERY // 2 and number < agreement.FOLLOW_EVERY + 20:
                yield clipped(model)
            optimizer.step()
            if number == agreement.FOLLOW_EVERY + 15:
                expect_halves(method)
        expect_halves(method, False)

    same(training, Scheduled(fallback="off", clipping="overlap"), ScheduledDDP(fallback="off", clipping="overlap"))


def reads_all(model):
    for each in model.parameters():
        each.grad.isfinite()


def reads_all_and_clips(model):
    reads_all(model)
    clipped(model)


def clips_and_reads_all(model):
    clipped(model)
    reads_all(model)


@on_ranks(2)
def test_sums_that_a_program_waits_for_go_as_they_become_ready():
    way_of_a_job(clipped, TOGETHER, clipping="wait")
    way_of_a_job(reads_all, TOGETHER)
    way_of_a_job(reads_all_and_clips, TOGETHER)


@on_ranks(2)
def test_sums_that_are_clipped_go_in_halves():
    way_of_a_job(clipped, HALVES)


@on_ranks(2)
def test_sums_that_are_clipped_and_read_go_as_they_become_ready_in_the_end():
    """As the next forward then has nothing to overlap with, whatever travels in halves."""
    way_of_a_job(clips_and_reads_all, TOGETHER, iterations=agreement.FIRST_LOOK + agreement.FOLLOW_EVERY + ITERATIONS)


@on_ranks(2)
def test_sums_that_the_next_forward_waits_for_go_in_its_order():
    way_of_a_job(lambda model: next(model.parameters()).grad, URGENT)


def way_of_a_job(read, way, iterations=ITERATIONS, **options):
    model = net()
    optimizer = ScheduledOptimizer(model, optim.SGD(model.parameters(), lr=0.1), warmup=2, **options)
    for batch in batches(iterations, 4, 24):
        backward(model, optimizer, batch)
        read(model)
        optimizer.step()
    assert optimizer._schedule.learner.plan.way == way
    optimizer.close()


@on_ranks(2)
def test_clipping_by_the_value_needs_no_norms():
    """Halves would bring it nothing."""

    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, optim.SGD(model.parameters(), lr=0.1))
        for number, batch in enumerate(batches(ITERATIONS, 4, 24)):
            yield backward(forward, optimizer, batch)
            nn.utils.clip_grad_value_(model.parameters(), 0.01, foreach=number % 2 == 0)
            optimizer.step()
        expect_halves(method, False)

    same(training, *overlapping())


@on_ranks(2)
def test_one_rank_reads_what_the_others_do_not():
    """There is nothing to wait for but what all ranks do in any case."""
    for make in METHODS.values():

        def training(method):
            model = net()
            forward, optimizer = method.wrap(model, optim.SGD(model.parameters(), lr=0.1))
            for number, batch in enumerate(batches(2 * ITERATIONS, 4, 24)):
                backward(forward, optimizer, batch)
                if dist.get_rank() == number % 2:
                    assert all(float(each.grad.norm()) > 0 for each in model.parameters())
                clipped(model)
                optimizer.step()
                if dist.get_rank() == number % 2:
                    optimizer.state_dict()
                    model.state_dict()
            yield None

        run(training, make(clipping="overlap"))


@on_ranks(2)
def test_step_does_not_wait_for_the_second_halves():
    """Of the last layers: forward begins meanwhile."""
    model = nn.Sequential(*[nn.Linear(60, 60) for _ in range(20)])
    method = Scheduled(clipping="overlap")
    method.slow = 0.003
    seen = []

    def training(method):
        forward, optimizer = method.wrap(model, optim.SGD(model.parameters(), lr=0.1))
        for batch in batches(2 * ITERATIONS, 4, 60):
            backward(forward, optimizer, batch)
            clipped(model)
            seen.append(sum(bool(each.unlanded) for each in optimizer._exchange.tracked))
            optimizer.step()
        assert optimizer.stats()["unscheduled"] == []
        yield None

    run(training, method)
    assert min(seen[ITERATIONS:]) > 10
