"""What torch.compile has traced: models, before they are scheduled, after it, and with a DistributedDataParallel around them; and whole
steps of a training."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from support.ranks import on_ranks
from support.training import Scheduled, batches, run, same, step

WIDTH = 24
ITERATIONS = 6


def compiled(model, **options):
    return torch.compile(model, backend="eager", **options)


def compiled_in_place(model, **options):
    model.compile(backend="eager", **options)
    return model


class Around(Scheduled):
    """``before`` makes the model that is scheduled, ``after`` the one that trains."""

    def __init__(self, before=lambda model: model, after=lambda model: model, **options):
        super().__init__(**options)
        self.before, self.after = before, after

    def wrap(self, model, optimizer, **ddp):
        _, optimizer = super().wrap(self.before(model), optimizer)
        self.raw, self.trained = model, self.after(self.model)
        return self.trained, optimizer

    def check(self):
        super().check()
        for module in self.trained.modules():  # else both reduce
            assert not isinstance(module, DistributedDataParallel) or not module.require_backward_grad_sync


WAYS = {
    "before": lambda: Around(lambda model: compiled(model, fullgraph=True)),
    "before, in place": lambda: Around(lambda model: compiled_in_place(model, fullgraph=True)),
    "before, in a DDP": lambda: Around(lambda model: DistributedDataParallel(compiled(model, fullgraph=True))),
    "before, of a DDP": lambda: Around(lambda model: compiled(DistributedDataParallel(model))),
    "before, then a DDP": lambda: Around(lambda model: compiled(model, fullgraph=True), DistributedDataParallel),
    "after": lambda: Around(after=compiled),
    "after, in place": lambda: Around(after=compiled_in_place),
    "after, of a DDP": lambda: Around(DistributedDataParallel, compiled),
    "after, with a DDP around it": lambda: Around(after=lambda model: compiled(DistributedDataParallel(model))),
    "after, then a DDP": lambda: Around(after=lambda model: DistributedDataParallel(compiled(model))),
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.gain = nn.Parameter(torch.ones(WIDTH))

    def forward(self, batch):
        return self.last(torch.tanh(self.first(batch)) * self.gain)


def training(method):
    torch._dynamo.reset()
    model = Net()
    forward, optimizer = method.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    for batch in batches(ITERATIONS, 4, WIDTH):
        yield step(forward, optimizer, batch)


@pytest.mark.parametrize("way", WAYS)
@on_ranks(2, timeout=180)
def test_a_compiled_model(way):
    same(training, WAYS[way]())


def between(method):
    """Two backward passes for a step, an evaluation before it, and a step that is left out: the graph runs while sums are under way."""
    torch._dynamo.reset()
    model = Net()
    forward, optimizer = method.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    for number, batch in enumerate(batches(ITERATIONS, 4, WIDTH)):
        optimizer.zero_grad()
        for _ in range(2):
            loss = forward(batch).square().mean()
            loss.backward()
        with torch.no_grad():
            yield forward(batch)
        yield {name: parameter.grad for name, parameter in model.named_parameters()}
        if number != ITERATIONS - 2:
            optimizer.step()


@pytest.mark.parametrize("unused", [False, True])
@pytest.mark.parametrize("way", [way for way in WAYS if way.startswith("before")])
@on_ranks(2, timeout=180)
def test_a_compiled_model_is_used_between_backward_and_step(way, unused):
    def make():
        method = WAYS[way]()
        method.options.update({"find_unused_parameters": True} if unused else {})
        return method

    same(between, make())


@pytest.mark.skipif(torch.__version__ < "2.7", reason="this PyTorch does not give the reason")
@pytest.mark.parametrize("compile_it", ["compiled", "compiled_in_place"])
@on_ranks(2, timeout=180)
def test_a_full_graph_afterwards_is_refused(compile_it):
    after = {"compiled": compiled, "compiled_in_place": compiled_in_place}[compile_it]
    with pytest.raises(RuntimeError, match=r"compile the model before ScheduledOptimizer\(model, optimizer\)"):
        run(training, Around(after=lambda model: after(model, fullgraph=True)))


# --- a whole step is compiled: what it calls of ours breaks the graph ---


class Deep(nn.Module):
    """Has more modules and parameters than torch.compile makes variants of one function for."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(5)])

    def forward(self, batch):
        return self.layers(batch)


def plain_step(forward, optimizer, method):
    def train(batch):
        optimizer.zero_grad()
        loss = forward(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return train


def accumulating_step(forward, optimizer, method):
    def train(batch):
        with method.no_sync():
            forward(batch).square().mean().backward()
        loss = forward(batch + 1).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss.detach()

    return train


def clipping_step(forward, optimizer, method):
    """Also reads and sets whatever one might."""
    stats, synchronize = getattr(optimizer, "stats", dict), getattr(optimizer, "synchronize", int)
    params = list(forward.parameters())

    def train(batch):
        loss = forward(batch).square().mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(params, 0.1)
        largest = params[0].grad.abs().max()
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * 0.9
        optimizer.step()
        stats()
        moments = len(optimizer.state)
        synchronize()
        weight = params[1].detach().sum()
        optimizer.zero_grad()
        return loss.detach(), norm, largest, moments, weight

    return train


def closure_step(forward, optimizer, method):
    def train(batch):
        def closure():
            optimizer.zero_grad()
            loss = forward(batch).square().mean()
            loss.backward()
            return loss

        return optimizer.step(closure).detach()

    return train


STEPS = {"plain": plain_step, "accumulating": accumulating_step, "clipping": clipping_step, "closure": closure_step}


@pytest.mark.parametrize("kind", STEPS)
@on_ranks(2, timeout=180)
def test_a_compiled_step(kind):
    def training(method):
        torch._dynamo.reset()
        model = Deep()
        forward, optimizer = method.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        train = torch.compile(STEPS[kind](forward, optimizer, method), backend="eager")
        for batch in batches(ITERATIONS, 4, WIDTH):
            yield train(batch)
            yield model.layers[3][0].weight
        for group in optimizer.param_groups:
            group.pop("capturable", None)  # torch.compile sets it where it traces an optimizer

    same(training)
