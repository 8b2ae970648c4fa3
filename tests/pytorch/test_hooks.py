"""What a program has hooked or derived, and hands to an optimizer, acts as with DistributedDataParallel."""

import contextlib
import copy
import gc
import os
import threading
import weakref

import pytest
import torch
from torch import nn

from prophet_mx import ProphetError
from support.ranks import on_ranks
from support.training import METHODS, Scheduled, backward, batches, same, step

WIDTH = 24
ITERATIONS = 7


def net():
    return nn.Sequential(nn.Linear(WIDTH, 40), nn.Tanh(), nn.Linear(40, WIDTH), nn.Linear(WIDTH, 2))


def momentum(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


# --- hooks of gradients ---


def scales(param):
    param.grad.mul_(0.5)


def replaces(param):
    param.grad = param.grad.clamp(-0.01, 0.01)


def drops(param):
    param.grad = None


@pytest.mark.parametrize("hooks", [[scales], [replaces], [scales, drops]], ids=["scales", "replaces", "drops"])
@pytest.mark.parametrize("accumulated", [False, True])
@on_ranks(2)
def test_hooks_that_change_gradients_before_they_are_reduced(hooks, accumulated):
    """Two backward passes to a step, and some steps are left out. The last hook is for one parameter alone."""

    def training(method):
        model = net()
        for param in model.parameters():
            param.register_post_accumulate_grad_hook(hooks[0])
        model[2].weight.register_post_accumulate_grad_hook(hooks[-1])
        forward, optimizer = method.wrap(model, momentum(model.parameters()))
        for place, batch in enumerate(batches(2 * ITERATIONS, 4, WIDTH)):
            optimizer.zero_grad()
            for part in (0, 1):
                with method.no_sync() if accumulated and part == place % 2 else contextlib.nullcontext():
                    loss = forward(batch[2 * part :]).square().mean()
                    loss.backward()
            if place % 3 == 1:
                yield [each.grad for each in model.parameters()]
            if place % 3:
                optimizer.step()
            yield loss

    same(training)


# --- step() ---


@on_ranks(2)
def test_hooks_of_step_see_what_the_step_has_done():
    def training(method):
        model = net()
        inner = momentum(model.parameters())
        forward, optimizer = method.wrap(model, inner)
        seen = []

        def look(made, *_):
            seen.append([made.state[param]["momentum_buffer"].clone() for group in made.param_groups for param in group["params"]])

        for target in (inner, optimizer):
            target.register_step_post_hook(look)
        for batch in batches(ITERATIONS, 4, WIDTH):
            yield step(forward, optimizer, batch)
            yield list(seen)
            seen.clear()

    same(training)


@on_ranks(2)
def test_hooks_before_a_step_come_before_its_closure():
    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, momentum(model.parameters()))
        optimizer.register_step_pre_hook(lambda made, *_: made.zero_grad())
        for batch in batches(ITERATIONS, 4, WIDTH):

            def closure():
                loss = forward(batch).square().mean()
                loss.backward()
                return loss

            yield optimizer.step(closure)

    same(training)


class Twice(torch.optim.Optimizer):
    """Steps twice if it can compute gradients anew."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})
        self.share = 1.0

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        for _ in range(1 if closure is None else 2):
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            for param in self.param_groups[0]["params"]:
                param.sub_(param.grad, alpha=self.share * self.param_groups[0]["lr"])
        return loss


@on_ranks(2)
def test_an_optimizer_that_is_not_known_gets_the_closure():
    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, Twice(model.parameters()))
        for place, batch in enumerate(batches(ITERATIONS, 4, WIDTH)):
            if place % 2:
                yield step(forward, optimizer, batch)
            else:
                yield optimizer.step(lambda: backward(forward, optimizer, batch))

    same(training)


# --- the optimizer's own ---


class Halving(torch.optim.SGD):
    """Its momentum can be halved."""

    def halve(self):
        for state in self.state.values():
            state["momentum_buffer"].mul_(0.5)


@on_ranks(2)
def test_methods_and_copies_see_the_state_of_the_last_step():
    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, Halving(model.parameters(), lr=0.1, momentum=0.9))
        for place, batch in enumerate(batches(ITERATIONS, 4, WIDTH)):
            yield step(forward, optimizer, batch)
            if place % 3 == 0:
                optimizer.halve()
            elif place % 3 == 1:
                yield copy.deepcopy(getattr(optimizer, "optimizer", optimizer)).state_dict()

    same(training)


@on_ranks(2)
def test_attributes_of_the_optimizer_are_set_on_it():
    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, Twice(model.parameters()))
        optimizer.of_the_program = "kept"
        for batch in batches(ITERATIONS, 4, WIDTH):
            yield step(forward, optimizer, batch)
            optimizer.share *= 0.5
        yield [optimizer.of_the_program, optimizer.share]
        assert getattr(optimizer, "optimizer", optimizer).share == optimizer.share

    same(training)


@on_ranks(2)
def test_a_state_that_is_begun_anew():
    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, momentum(model.parameters()))
        for place, batch in enumerate(batches(ITERATIONS, 4, WIDTH)):
            yield step(forward, optimizer, batch)
            if place == 4:
                optimizer.state = type(optimizer.state)(dict)

    same(training)


@on_ranks(2)
def test_hyperparameters_that_are_changed_in_place():
    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, torch.optim.Adam(model.parameters(), lr=0.01))
        optimizer.param_groups[0]["betas"] = [0.9, 0.99]
        for batch in batches(ITERATIONS, 4, WIDTH):
            yield step(forward, optimizer, batch)
            optimizer.param_groups[0]["betas"][0] *= 0.8

    same(training)


@on_ranks(2)
def test_a_step_within_autocast():
    """Adafactor multiplies matrices."""

    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, torch.optim.Adafactor(model.parameters(), lr=0.01))
        for batch in batches(ITERATIONS, 4, WIDTH):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                yield step(forward, optimizer, batch)

    same(training)


# --- parameters that change, and ends ---


@on_ranks(2)
def test_a_parameter_that_is_no_longer_of_its_type_is_refused():
    for make in METHODS.values():
        method = make()
        model = net()
        forward, optimizer = method.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
        step(forward, optimizer, torch.ones(4, WIDTH))
        model.double()
        with pytest.raises(ProphetError, match="when the ScheduledOptimizer was made"):
            step(forward, optimizer, torch.ones(4, WIDTH, dtype=torch.float64))
        method.close()


@on_ranks(2)
def test_a_parameter_whose_elements_lie_in_another_order_later_is_refused():
    """A fused optimizer would update each element by the gradient of another one, and norms have other bits."""
    for make in METHODS.values():
        method = make()
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 1), nn.Flatten(), nn.Linear(8, 2))
        forward, optimizer = method.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1, fused=True))
        model[1].to(memory_format=torch.channels_last)  # the same order, as it has one pixel
        step(forward, optimizer, torch.ones(4, 3, 4, 4))
        model.to(memory_format=torch.channels_last)
        with pytest.raises(ProphetError, match="'0.weight' has the strides .*memory_format"):
            step(forward, optimizer, torch.ones(4, 3, 4, 4))
        method.close()


@on_ranks(2)
def test_parameters_of_several_kinds():
    """Without elements, without dimensions, and complex ones."""

    class Kinds(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)
            self.nothing = nn.Parameter(torch.zeros(0, WIDTH))
            self.gain = nn.Parameter(torch.tensor(1.0))
            self.turn = nn.Parameter(torch.ones(WIDTH, dtype=torch.complex64))

        def forward(self, batch):
            return (torch.cat([self.layer(batch), self.nothing]) * self.turn).abs() * self.gain

    def training(method):
        model = Kinds()
        forward, optimizer = method.wrap(model, momentum(model.parameters()))
        for batch in batches(ITERATIONS, 4, WIDTH):
            yield step(forward, optimizer, batch)

    same(training)


@on_ranks(2)
def test_after_closing_the_memory_is_the_programs():
    """Although the program still has the optimizer, as after DDP was found to be faster. Threads and files are closed as well."""
    counts = []
    for _ in range(3):
        method = Scheduled()
        model = net()
        _, optimizer = method.wrap(model, momentum(model.parameters()))
        for batch in batches(4, 4, WIDTH):
            step(model, optimizer, batch)
        exchange = optimizer._exchange
        held = [weakref.ref(unit) for unit in exchange.rounds._reducer._units]
        held += [weakref.ref(each.view) for each in exchange.tracked]
        optimizer.close()
        model.zero_grad()
        gc.collect()
        counts.append((threading.active_count(), len(os.listdir("/proc/self/fd"))))
        assert not [each for each in held if each() is not None]
    assert all(last <= before for last, before in zip(counts[-1], counts[-2])), counts  # earlier tests may have left some to be closed
