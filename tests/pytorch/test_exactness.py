"""Trainings end as with DistributedDataParallel: with two ranks bit for bit, with more where sums do not depend on their order."""

import itertools
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn, optim
from torch.optim import lr_scheduler

from prophet_mx.planning.rounds import RoundPlanner
from support.ranks import on_ranks
from support.training import Method, Scheduled, ScheduledDDP, assert_equal, batches, run, same, step

ITERATIONS = 8

# By name: how the optimizer is made of parameters or groups.
OPTIMIZERS = {
    "SGD": lambda groups: optim.SGD(groups, lr=0.05),
    "SGD momentum": lambda groups: optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=1e-3, foreach=True),
    "SGD nesterov": lambda groups: optim.SGD(groups, lr=0.05, momentum=0.8, nesterov=True, maximize=True),
    "SGD fused": lambda groups: optim.SGD(groups, lr=0.05, momentum=0.9, dampening=0.1, fused=True),
    "Adam": lambda groups: optim.Adam(groups, lr=0.01),
    "Adam amsgrad": lambda groups: optim.Adam(groups, lr=0.01, amsgrad=True, foreach=True),
    "Adam fused": lambda groups: optim.Adam(groups, lr=0.01, weight_decay=0.01, fused=True),
    "AdamW": lambda groups: optim.AdamW(groups, lr=0.01, weight_decay=0.1),
    "AdamW fused": lambda groups: optim.AdamW(groups, lr=0.01, amsgrad=True, fused=True),
    "NAdam": lambda groups: optim.NAdam(groups, lr=0.01),
    "RAdam": lambda groups: optim.RAdam(groups, lr=0.01, decoupled_weight_decay=True, weight_decay=0.01),
    "Adamax": lambda groups: optim.Adamax(groups, lr=0.01),
    "Adagrad": lambda groups: optim.Adagrad(groups, lr=0.05, lr_decay=0.01, initial_accumulator_value=0.1),
    "Adagrad fused": lambda groups: optim.Adagrad(groups, lr=0.05, fused=True),
    "Adadelta": lambda groups: optim.Adadelta(groups, lr=0.5, foreach=True),
    "RMSprop": lambda groups: optim.RMSprop(groups, lr=0.01, momentum=0.5, centered=True),
    "Rprop": lambda groups: optim.Rprop(groups, lr=0.01),
    "ASGD": lambda groups: optim.ASGD(groups, lr=0.05, t0=3),
}

# How the learning rate, or a momentum, changes after each iteration.
SCHEDULERS = {
    "constant": None,
    "step": lambda optimizer: lr_scheduler.StepLR(optimizer, 2, gamma=0.5),
    "warm restarts after warm-up": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3), lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2)], [3]
    ),
}


def net() -> nn.Module:
    """Gradients smaller than a unit, about as large, and larger; none a multiple of another."""
    return nn.Sequential(nn.Linear(7, 40), nn.Tanh(), nn.Linear(40, 33), nn.BatchNorm1d(33), nn.ReLU(), nn.Linear(33, 3, bias=False))


def groups_of(model: nn.Module, split: bool):
    """All parameters; or ``split``: weights and biases with options of their own, in an order that is not the model's."""
    if not split:
        return model.parameters()
    parameters = list(model.parameters())
    return [
        {"params": [each for each in reversed(parameters) if each.dim() > 1]},
        {"params": [each for each in parameters if each.dim() == 1], "lr": 0.02},
    ]


def iteration(method: Method, optimizer: optim.Optimizer, parts, accumulate: int):
    """One step, after the gradients of several batches have been added up; the losses."""
    losses = []
    optimizer.zero_grad()
    for place, batch in enumerate(parts):
        with method.no_sync() if place < accumulate - 1 else nullcontext():
            loss = method.model(batch).square().mean()
            loss.backward()
        losses.append(loss)
    optimizer.step()
    return losses


@pytest.mark.parametrize("name", OPTIMIZERS)
@on_ranks(2, timeout=120)
def test_two_ranks_bit_for_bit(name):
    for split, schedule, accumulate in itertools.product((False, True), SCHEDULERS, (1, 3)):

        def training(method):
            model = net()
            _, optimizer = method.wrap(model, OPTIMIZERS[name](groups_of(model, split)))
            scheduler = SCHEDULERS[schedule](optimizer) if SCHEDULERS[schedule] else None
            data = batches(ITERATIONS * accumulate, 4, 7)
            for _ in range(ITERATIONS):
                yield iteration(method, optimizer, [next(data) for _ in range(accumulate)], accumulate)
                if scheduler:
                    scheduler.step()
                    yield scheduler.get_last_lr()

        # By turns: each of them has been tried with every schedule, and with every other of what differs.
        method = ScheduledDDP() if split == (accumulate == 1) else Scheduled()
        try:
            same(training, method)
        except AssertionError as found:
            raise AssertionError(f"groups split: {split}, schedule: {schedule}, accumulated: {accumulate}") from found


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@on_ranks(2)
def test_other_types_of_numbers_bit_for_bit(dtype):
    def training(method):
        model = nn.Sequential(nn.Linear(6, 30), nn.Tanh(), nn.Linear(30, 5)).to(dtype)
        model[2].to(torch.float32)
        forward, optimizer = method.wrap(model, optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        model[1].register_forward_hook(lambda module, inputs, output: output.float())
        for batch in batches(ITERATIONS, 4, 6):
            yield step(forward, optimizer, batch.to(dtype))

    same(training)


# --- more ranks ---


class WholeNumbers(nn.Module):
    """A model whose gradients are small whole numbers, so that their sums are exact in any order: outputs are linear in each parameter,
    whose own values do not reach another's gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = (700, 40, 3, 1500, 1, 64)
        self.parts = nn.ParameterList(nn.Parameter(torch.zeros(size)) for size in self.sizes)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        total = batch.new_zeros(())
        for part, values in zip(self.parts, batch.split(self.sizes)):
            total = total + (part * values).sum()
        return total


@pytest.mark.parametrize("size", [3, 4])
def test_more_ranks_bit_for_bit_with_whole_numbers(size):
    on_ranks(size)(whole_numbers)()


def whole_numbers():
    def training(method):
        model = WholeNumbers()
        # A power of two: with it, and four ranks, weights are exact as well. With three, the thirds are of equal sums and round alike.
        forward, optimizer = method.wrap(model, optim.SGD(model.parameters(), lr=0.25, momentum=0.5))
        for batch in batches(ITERATIONS, sum(model.sizes), whole=True):
            optimizer.zero_grad()
            forward(batch * dist.get_world_size()).backward()
            optimizer.step()
        yield "ended"

    same(training)


@pytest.mark.parametrize("size", [3, 4])
def test_more_ranks_close_with_any_numbers(size):
    on_ranks(size)(any_numbers)()


def any_numbers():
    def training(method):
        model = net()
        _, optimizer = method.wrap(model, optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
        for batch in batches(ITERATIONS, 4, 7):
            yield iteration(method, optimizer, [batch], 1)

    expected = run(training, Method())[-1]["parameters"]
    for method in (Scheduled(), ScheduledDDP()):
        got = run(training, method)[-1]["parameters"]
        for name in expected:
            torch.testing.assert_close(got[name], expected[name], rtol=1e-4, atol=1e-6, msg=lambda text: f"{name}: {text}")
        assert_equal_on_all_ranks(got)


def assert_equal_on_all_ranks(parameters):
    """Ranks that drift apart would still be close to DDP for a while."""
    for name, parameter in parameters.items():
        of_rank_0 = parameter.clone()
        dist.broadcast(of_rank_0, 0)
        assert_equal(of_rank_0, parameter, f"{name}, as on rank 0")


# --- the units of the plan, without its order ---


class Recorded(Scheduled):
    """Keeps which units the gradients were reduced in: a list of (first iteration, units)."""

    def wrap(self, model, optimizer, **ddp):
        self.plans = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RoundPlanner, "first_plan", self.keeping(RoundPlanner.first_plan))
            result = super().wrap(model, optimizer, **ddp)
        self.learned = pytest.MonkeyPatch()
        self.learned.setattr(RoundPlanner, "plan", self.keeping(RoundPlanner.plan))
        return result

    def keeping(self, make):
        def kept(*arguments):
            plan = make(*arguments)
            self.plans.append((0 if not self.plans else self.optimizer._schedule.iteration, [unit.slices for unit in plan.units]))
            return plan

        return kept

    def close(self):
        super().close()
        self.learned.undo()


class Synchronous(Method):
    """All gradients first; then the same units, one after the other; then the user's optimizer."""

    def __init__(self, plans):
        super().__init__()
        self.plans, self.done = plans, 0

    def wrap(self, model, optimizer, **ddp):
        self.raw = self.model = model
        self.optimizer, self.step = optimizer, optimizer.step
        optimizer.step = self.reduce_and_step
        return model, optimizer

    def reduce_and_step(self):
        [*_, units] = [units for first, units in self.plans if first <= self.done]
        gradients = [each.grad.view(-1) for each in self.raw.parameters()]
        for unit in units:
            flat = torch.cat([gradients[index][start:stop] for index, start, stop in unit]) * (1 / dist.get_world_size())
            dist.all_reduce(flat)
            for (index, start, stop), part in zip(unit, flat.split([stop - start for _, start, stop in unit])):
                gradients[index][start:stop] = part
        self.step()
        self.done += 1


@pytest.mark.parametrize("size", [3, 4])
def test_more_ranks_bit_for_bit_with_the_same_units_reduced_one_by_one(size):
    on_ranks(size)(the_same_units)()


def the_same_units():
    def training(method):
        model = nn.Sequential(nn.Linear(7, 40), nn.Tanh(), nn.Linear(40, 33), nn.ReLU(), nn.Linear(33, 3, bias=False))
        _, optimizer = method.wrap(model, optim.AdamW(model.parameters(), lr=0.01))
        for batch in batches(ITERATIONS, 4, 7):
            yield iteration(method, optimizer, [batch], 1)

    recorded = Recorded()
    got = run(training, recorded)
    assert len(recorded.plans) == 2 and all(len(units) > 3 for _, units in recorded.plans)
    assert_equal(run(training, Synchronous(recorded.plans)), got, "the same units")
