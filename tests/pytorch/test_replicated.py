"""Modules of ``replicate()``, which hides a DistributedDataParallel: one of the two reduces, never both, with the result of that alone."""

import pytest
import torch
from torch import nn
from torch.distributed._composable import replicate

from prophet_mx.errors import ConfigError
from prophet_mx.torch import ScheduledOptimizer, trial
from support.ranks import on_ranks
from support.training import Method, Scheduled, assert_equal, batches, counted_steps, run, step

WIDTH = 24
ITERATIONS = 6


class Net(nn.Module):
    """Has buffers, and a parameter of its own."""

    def __init__(self, width=WIDTH):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.Tanh(), nn.Linear(width, width))
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, batch):
        return self.layers(batch) * self.gain


class Bare(nn.Module):
    """Has all its parameters itself."""

    def __init__(self):
        super().__init__()
        self.weight, self.gain = nn.Parameter(torch.rand(WIDTH, WIDTH)), nn.Parameter(torch.ones(WIDTH))

    def forward(self, batch):
        return torch.tanh(batch @ self.weight) * self.gain


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


class Replicated(Method):
    """``replicate()`` alone."""

    def wrap(self, model, optimizer, **options):
        self.raw, self.model, self.optimizer = model, replicate(model, **options), optimizer
        return self.model, self.optimizer


class Both(Scheduled):
    """``replicate()`` before or after ScheduledOptimizer."""

    def __init__(self, first, around=lambda model: model, **options):
        super().__init__(**options)
        self.first, self.around = first, around

    def wrap(self, model, optimizer, **options):
        self.raw = self.model = model
        if self.first:
            replicate(model, **options)
        self.optimizer = ScheduledOptimizer(self.around(model), optimizer, **self.options)
        if not self.first:
            replicate(model, **options)
        return self.model, self.optimizer


def trained(make=Net, **options):
    def training(method):
        model = make()
        inner = sgd(model)
        forward, optimizer = method.wrap(model, inner, **options)
        for batch in batches(ITERATIONS, 4, WIDTH):
            yield step(forward, optimizer, batch)
        method.close()
        for batch in batches(ITERATIONS, 4, WIDTH):
            yield step(forward, inner, batch)

    return training


def same(training, *methods):
    expected = run(training, Replicated())
    for method in methods or (Both(True), Both(False)):
        assert_equal(expected, run(training, method), f"{type(method).__name__} {vars(method)}")


@pytest.mark.parametrize("make", [Net, Bare])
@on_ranks(2)
def test_it_is_adopted_until_the_optimizer_is_closed(make):
    same(trained(make))
    same(trained(make, static_graph=True))


@on_ranks(2, timeout=120)
def test_it_is_adopted_where_the_model_is_compiled():
    same(trained(), Both(True, lambda model: torch.compile(model, backend="eager")))


@on_ranks(2)
def test_the_gradients_are_sent_once():
    """Seen by the bytes that this rank writes in some iterations, also once the optimizer is closed."""
    counted = []

    def training(method):
        model = Net(500)
        inner = sgd(model)
        forward, optimizer = method.wrap(model, inner)
        for batch in batches(4, 2, 500):
            yield step(forward, optimizer, batch)
        for closed in (False, True):
            if closed:
                method.close()
                optimizer = inner
            counted.append((yield from counted_steps(forward, optimizer, 500)))

    same(training, Both(True, unit=100_000), Both(False, unit=100_000))
    payload = 4 * 4 * (2 * 500 * 500 + 5 * 500)
    assert len(counted) == 6 and all(0.95 * payload < each < 1.1 * payload for each in counted), (payload, counted)


@on_ranks(2)
def test_accumulation_and_unused_parameters():
    """By set_requires_gradient_sync(), and by no_sync() of the optimizer, also where ``replicate()`` goes on alone."""

    class Sometimes(Net):
        def __init__(self):
            super().__init__()
            self.never = nn.Linear(WIDTH, WIDTH)

    def training(method):
        model = Sometimes()
        forward, optimizer = method.wrap(model, sgd(model), find_unused_parameters=True)
        inputs = batches(3 * ITERATIONS, 4, WIDTH)
        for number in range(ITERATIONS):
            for last in (False, False, True):
                if not last and number % 2 and isinstance(method, Scheduled):
                    with optimizer.no_sync():
                        forward(next(inputs)).square().mean().backward()
                    continue
                forward.set_requires_gradient_sync(last)
                forward(next(inputs)).square().mean().backward()
                forward.set_requires_gradient_sync(True)
            if number == ITERATIONS - 2 and isinstance(method, Alone):
                optimizer.step()
                method.check()
                optimizer._schedule._go_on_alone()
            else:
                optimizer.step()
            optimizer.zero_grad()
            yield model.gain

    class Alone(Both):
        """Goes on with ``replicate()`` alone before the last iteration."""

    same(training, Both(True), Both(False), Alone(True))


@on_ranks(2)
def test_it_is_tried_whether_it_is_faster_alone():
    def training(method):
        model = Net()
        forward, optimizer = method.wrap(model, sgd(model))
        for batch in batches(30, 4, WIDTH):
            yield step(forward, optimizer, batch)
            method.check()
        if isinstance(method, Both):
            assert optimizer.stats()["ddp_seconds"] > 0

    before = trial.AFTER, trial.BLOCK
    trial.AFTER = trial.BLOCK = 3
    try:
        same(training, Both(True), Both(False))
    finally:
        trial.AFTER, trial.BLOCK = before


@on_ranks(2)
def test_a_part_of_the_model_is_refused():
    model = nn.Sequential(replicate(Net()), nn.Linear(WIDTH, WIDTH))
    with pytest.raises(ConfigError, match=r"replicate\(\) was applied to module '0'.*allowed: replicate\(\) of the whole model"):
        ScheduledOptimizer(model, sgd(model))
    model = nn.Sequential(Net(), nn.Linear(WIDTH, WIDTH))
    optimizer = ScheduledOptimizer(model, sgd(model))
    replicate(model[0])
    with pytest.raises(ConfigError, match=r"replicate\(\) was applied to module '0'"):
        model(torch.ones(4, WIDTH))
    optimizer.close()
