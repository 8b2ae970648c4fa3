"""What a job does that keeps gradients from being scheduled is said once, and in stats(); and optimizers that do not."""

import importlib
import logging

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from prophet_mx.errors import CollectiveError
from prophet_mx.torch import ScheduledOptimizer
from support.lines import Lines
from support.ranks import on_ranks
from support.training import UNIT, WARMUP, Scheduled, ScheduledDDP, assert_same_on_all_ranks, backward, batches, same, step

WIDTH = 24
ITERATIONS = 20


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))


def scheduled(model, optimizer=None, **options):
    return ScheduledOptimizer(model, optimizer or torch.optim.SGD(model.parameters(), lr=0.1), warmup=WARMUP, unit=UNIT, **options)


class Whole(torch.optim.SGD):
    """Adds something to its step."""

    def step(self, closure=None):
        return super().step(closure)


def plain(model, optimizer, batch):
    step(model, optimizer, batch)


def clipped(model, optimizer, batch):
    backward(model, optimizer, batch)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()


def clipped_by_another_norm(model, optimizer, batch):
    backward(model, optimizer, batch)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1, norm_type=1)
    optimizer.step()


def averaged(model, optimizer, batch):
    step(model, optimizer, batch)
    if not hasattr(optimizer, "average"):
        optimizer.average = AveragedModel(model)
    optimizer.average.update_parameters(model)


def synchronized(model, optimizer, batch):
    step(model, optimizer, batch)
    optimizer.synchronize()
    float(model[0].weight.sum() + model[0].bias.sum() + model[2].weight.sum() + model[2].bias.sum())


def directly(model, optimizer, batch):
    backward(model, optimizer, batch)
    optimizer.optimizer.step()


WAYS = {
    "plain": (plain, None, None),
    "clipped": (clipped, None, None),
    "clipped, wait": (clipped, None, "gradients were read before step"),
    "clipped by another norm": (clipped_by_another_norm, None, "gradients were read before step"),
    "averaged": (averaged, None, "weights were read between step"),
    "synchronized": (synchronized, None, "weights were read between step"),
    "directly": (directly, None, "of the SGD inside was called"),
    "as a whole": (plain, lambda model: Whole(model.parameters(), lr=0.1), "Whole is not known to treat each parameter by itself"),
}


@pytest.mark.parametrize("way", WAYS)
@on_ranks(2)
def test_a_reason_is_said_once_and_listed(way):
    iteration, make, reason = WAYS[way]
    model = net()
    with Lines(logging.WARNING) as lines:
        optimizer = scheduled(model, make and make(model), clipping="wait" if "wait" in way else "overlap")
        for batch in batches(2 * ITERATIONS, 4, WIDTH):
            iteration(model, optimizer, batch)
        reasons = optimizer.stats()["unscheduled"]
        optimizer.close()
    assert lines.messages == reasons
    assert len(reasons) == (reason is not None) and all(reason in each for each in reasons)


@on_ranks(2)
def test_once_in_a_while_is_no_reason():
    model = net()
    optimizer = scheduled(model)
    for place, batch in enumerate(batches(2 * ITERATIONS, 4, WIDTH)):
        (plain, clipped, averaged)[place % 3](model, optimizer, batch)
    assert optimizer.stats()["unscheduled"] == []
    optimizer.close()
    plain(model, optimizer.optimizer, batch)
    assert optimizer.stats()["unscheduled"] == []  # afterwards it is the user's own


@pytest.mark.parametrize("kind", [torch.optim.SGD, Whole], ids=["as sums arrive", "as a whole"])
@on_ranks(2)
def test_parameters_that_are_put_in_the_place_of_others_are_refused(kind):
    """DistributedDataParallel raises an error as well, an iteration later."""
    model = net()
    optimizer = scheduled(model, kind(model.parameters(), lr=0.1))
    [first, second, third] = batches(3, 4, WIDTH)
    step(model, optimizer, first)
    optimizer.step()  # without a backward before it
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    with pytest.raises(CollectiveError, match="'0.weight' is another one .* assign=True"):
        step(model, optimizer, second)
    optimizer.close()
    step(model, scheduled(model), third)


@on_ranks(2)
def test_parameters_that_are_unfrozen_later():
    model = net()
    model[0].requires_grad_(False)
    ddp = DistributedDataParallel(model)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    with Lines(logging.WARNING) as lines:
        optimizer = scheduled(ddp, inner)
        inputs = batches(2 * ITERATIONS, 4, WIDTH)
        step(ddp, optimizer, next(inputs))
        assert optimizer.stats()["unscheduled"] == []
        model[0].requires_grad_(True)
        for batch in inputs:
            step(ddp, optimizer, batch)
    [reason] = optimizer.stats()["unscheduled"]
    assert reason.startswith("0.weight, 0.bias did not require a gradient") and lines.messages == [reason]
    optimizer.close()


@pytest.mark.parametrize("kind", [torch.optim.SGD, Whole], ids=["as sums arrive", "as a whole"])
@on_ranks(2)
def test_they_are_not_trained_and_change_no_norm(kind):
    """Their gradients are not the same on all ranks."""
    model = net()
    model[0].requires_grad_(False)
    before = [each.clone() for each in model[0].parameters()]
    optimizer = scheduled(model, kind(model.parameters(), lr=0.1))
    for number, batch in enumerate(batches(ITERATIONS, 4, WIDTH)):
        model[0].requires_grad_(number >= 3)
        backward(model, optimizer, batch)
        if number % 2:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    assert all(torch.equal(*pair) and pair[0].grad is None for pair in zip(model[0].parameters(), before))
    assert_same_on_all_ranks(model.parameters())
    optimizer.close()
    second = scheduled(model, optimizer.optimizer)
    step(model, second, batch)
    assert not torch.equal(model[0].weight, before[0])
    assert_same_on_all_ranks(model.parameters())
    second.close()


# --- optimizers that run as sums arrive ---


class Named(torch.optim.AdamW):
    """Has a name and its own defaults, and nothing else of its own."""

    def __init__(self, params, name="named"):
        super().__init__(params, lr=0.01, betas=(0.8, 0.9))
        self.name = name

    def __repr__(self):
        return self.name

    def largest(self):
        return max(group["lr"] for group in self.param_groups)


class Replaced(torch.optim.SGD):
    """Replaces a part of its step."""

    def _init_group(self, *arguments):
        return super()._init_group(*arguments)


LAZY = {
    "Adafactor": lambda params: torch.optim.Adafactor(params, lr=0.01),
    "Adafactor foreach": lambda params: torch.optim.Adafactor(params, lr=0.01, foreach=True),
    "Muon": lambda params: torch.optim.Muon(params, lr=0.01),
    "Lion": lambda params: importlib.import_module("lion_pytorch").Lion(params, lr=0.01, weight_decay=0.1),
    "Adafactor of transformers": lambda params: importlib.import_module("transformers.optimization").Adafactor(
        params, lr=0.01, relative_step=False
    ),
    "a harmless subclass": Named,
}
PACKAGES = {"Lion": "lion_pytorch", "Adafactor of transformers": "transformers"}


@pytest.mark.parametrize("name", LAZY)
def test_an_optimizer_that_treats_each_parameter_by_itself_runs_as_sums_arrive(name):
    if name in PACKAGES:
        pytest.importorskip(PACKAGES[name])
    elif not hasattr(torch.optim, name.split()[0]) and name != "a harmless subclass":
        pytest.skip("this PyTorch does not have it")
    runs_as_sums_arrive(name=name)


@on_ranks(2)
def runs_as_sums_arrive(name):
    def training(method):
        model = nn.Sequential(nn.Linear(WIDTH, 40, bias=False), nn.Tanh(), nn.Linear(40, 33, bias=False), nn.Linear(33, 5, bias=False))
        forward, optimizer = method.wrap(model, LAZY[name](model.parameters()))
        for batch in batches(ITERATIONS, 4, WIDTH):
            yield step(forward, optimizer, batch)
        if isinstance(method, Scheduled):
            assert optimizer.stats()["unscheduled"] == []

    same(training, Scheduled(), ScheduledDDP())


def test_one_that_replaces_a_part_of_step_does_not():
    from prophet_mx.torch.refusals import steps_lazily

    params = net().parameters()
    optimizer = Named(params)
    assert steps_lazily(optimizer)
    for change in (Replaced(net().parameters(), lr=0.1), Whole(net().parameters(), lr=0.1)):
        assert not steps_lazily(change)
    assert steps_lazily(type("Annotated", (torch.optim.SGD,), {"__annotate_func__": None})(net().parameters(), lr=0.1))  # as of Python 3.14
    optimizer._init_group = optimizer._init_group
    assert not steps_lazily(optimizer)
