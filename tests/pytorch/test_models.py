"""Models as people have them: whatever way a parameter is reached or used, the training ends as with DistributedDataParallel."""

import copy
import logging
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from prophet_mx import ProphetError
from prophet_mx.torch.strategies import AllReduce
from support.lines import Lines
from support.ranks import on_ranks
from support.training import Method, Scheduled, ScheduledDDP, assert_equal, backward, batches, run, same, step

ITERATIONS = 6
WIDTH = 24


def trained(make, shape=(4, WIDTH), options=None, **ddp):
    """A training of the model that ``make()`` gives, with an optimizer that has a state."""

    def training(method):
        model = make()
        forward, optimizer = method.wrap(model, torch.optim.Adam(model.parameters(), lr=0.01), **ddp)
        for batch in batches(ITERATIONS, *shape):
            yield step(forward, optimizer, batch)

    return training


class Attention(nn.Module):
    """Its projections belong to MultiheadAttention itself, which hands them to a function; the output's module is never called."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, batch):
        return self.norm(self.attention(batch, batch, batch, need_weights=False)[0])


class Containers(nn.Module):
    """Parameters in containers that are never called, and one of the model's own."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(WIDTH, WIDTH) / 5) for _ in range(3))
        self.others = nn.ParameterDict({"shift": nn.Parameter(torch.zeros(WIDTH)), "scale": nn.Parameter(torch.ones(WIDTH))})
        self.gain = nn.Parameter(torch.tensor(1.0))

    def forward(self, batch):
        for weight in self.weights:
            batch = torch.tanh(batch @ weight)
        return self.gain * (batch * self.others["scale"] + self.others["shift"])


class Tied(nn.Module):
    """An embedding whose weight is that of the output as well."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, WIDTH)
        self.middle = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, 50, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, batch):
        return self.out(torch.tanh(self.middle(self.embedding((batch.abs() * 10).long() % 50))))


class Repeated(nn.Module):
    """A module that is used three times, and its weight once more by another module."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.other = nn.Bilinear(WIDTH, WIDTH, 2)

    def forward(self, batch):
        for _ in range(3):
            batch = torch.relu(self.layer(batch))
        return self.other(batch, functional.linear(batch, self.layer.weight.t()))


class Functional(nn.Module):
    """Weights that are used by functions, before and after the modules that own them, and by their values alone."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, batch):
        early = functional.linear(batch, self.last.weight, self.first.bias)
        late = self.last(torch.relu(self.first(batch)))
        return early + late * torch.addmm(self.first.bias, batch, self.first.weight) + self.last.weight.detach().norm()


class Reparametrised(nn.Module):
    """Weights that are computed from others as they are asked for, and one that an iteration of its own makes of a buffer."""

    def __init__(self):
        super().__init__()
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))
        self.spectral = nn.utils.spectral_norm(nn.Linear(WIDTH, WIDTH))

    def forward(self, batch):
        return self.spectral(torch.relu(self.normed(batch)))


class Recurrent(nn.Module):
    """An LSTM keeps its weights in a list of its own, too."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, 9, num_layers=2, batch_first=True)

    def forward(self, batch):
        return self.lstm(batch)[0]


class Statistics(nn.Module):
    """Buffers that training changes, others on each rank."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8, momentum=0.3), nn.Linear(8, 3))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, batch):
        self.calls += 1 + (dist.get_rank() if self.training else 0)
        return self.layers(batch) * (1 + self.calls)


class Checkpointed(nn.Module):
    """Activations are computed again in backward, where parameters are used while their gradients come."""

    def __init__(self, reentrant):
        super().__init__()
        self.reentrant = reentrant
        self.first = nn.Linear(WIDTH, WIDTH)
        self.middle = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(4)])

    def forward(self, batch):
        batch = checkpoint(lambda value: torch.relu(self.first(value)), batch.requires_grad_(), use_reentrant=self.reentrant)
        return checkpoint_sequential(self.middle, 2, batch, use_reentrant=self.reentrant)


class Compiled(nn.Module):
    """A submodule that torch.compile has traced, in place or as another module."""

    def __init__(self, backend, in_place):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        if in_place:
            self.body.compile(backend=backend)
        self.compiled = self.body if in_place else torch.compile(self.body, backend=backend)

    def forward(self, batch):
        return self.compiled(torch.relu(self.first(batch)))


class Autocast(nn.Module):
    """Weights are cast as they are used, and the casts are kept within a forward."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH))

    def forward(self, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.layers(self.layers(batch)).float()


SEQUENCES = (2, 5, WIDTH)


@pytest.mark.parametrize(
    "make, shape",
    [
        (Attention, SEQUENCES),
        (Containers, (4, WIDTH)),
        (Tied, (2, 5)),
        (Repeated, (4, WIDTH)),
        (Functional, (4, WIDTH)),
        (Reparametrised, (4, WIDTH)),
        (Recurrent, SEQUENCES),
        (Statistics, (4, WIDTH)),
        (Autocast, (4, WIDTH)),
    ],
)
@on_ranks(2)
def test_a_model(make, shape):
    same(trained(make, shape))


@on_ranks(2)
def test_attention_is_evaluated_in_the_same_way():
    """PyTorch has a faster one, with other bits, for parameters that are not guarded."""

    def training(method):
        model = Attention()
        forward, optimizer = method.wrap(model, torch.optim.Adam(model.parameters(), lr=0.01))
        for batch in batches(ITERATIONS, *SEQUENCES):
            yield step(forward, optimizer, batch)
            model.eval()
            with torch.no_grad():
                yield model(batch)
            model.train()

    same(training)


@on_ranks(2)
def test_a_transformer():
    def make():
        return nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0, batch_first=True), 2, enable_nested_tensor=False)

    same(trained(make, SEQUENCES))


@pytest.mark.parametrize("reentrant", [True, False])
@on_ranks(2)
def test_activation_checkpointing(reentrant):
    same(trained(lambda: Checkpointed(reentrant)))


@pytest.mark.parametrize("backend, in_place", [("eager", False), ("eager", True), ("aot_eager", False)])
@on_ranks(2, timeout=180)
def test_a_compiled_submodule(backend, in_place):
    same(trained(lambda: Compiled(backend, in_place)))


@on_ranks(2)
def test_frozen_parameters():
    def make():
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        model[0].weight.requires_grad_(False)
        return model

    same(trained(make))


@on_ranks(2)
def test_ranks_become_ready_in_different_orders():
    """Two branches, one after the other in backward: by turns, and never the same on both ranks."""

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.branches = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
            self.calls = 0

        def forward(self, batch):
            self.calls += 1
            order = sorted(range(4), key=lambda place: (place + self.calls * (1 + dist.get_rank())) % 4)
            outputs = {place: self.branches[place](batch) for place in order}
            return torch.stack([outputs[place] for place in range(4)]).sum(0)

    same(trained(Branches))


# --- not every parameter in every iteration ---


class Sometimes(nn.Module):
    """One part is used in every third iteration and on one rank alone, one is never used."""

    def __init__(self):
        super().__init__()
        self.always = nn.Linear(WIDTH, WIDTH)
        self.sometimes = nn.Linear(WIDTH, WIDTH)
        self.never = nn.Linear(WIDTH, WIDTH)
        self.calls = 0

    def forward(self, batch):
        self.calls += 1
        batch = self.always(batch)
        return self.sometimes(batch) if self.calls % 3 == 1 + dist.get_rank() else batch


@on_ranks(2)
def test_unused_parameters_where_ddp_was_told_of_them():
    same(trained(Sometimes, find_unused_parameters=True), ScheduledDDP())


@on_ranks(2)
def test_a_plan_is_made_when_the_answers_of_unused_parameters_are_there():
    """On one rank they start late: no other collective may come before them there."""

    class Late(AllReduce):
        def start(self, unit):
            if unit.dtype is torch.int32 and dist.get_rank() == 1:
                time.sleep(0.05)
            return super().start(unit)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prophet_mx.torch.compression.AllReduce", Late)
        same(trained(lambda: nn.Linear(WIDTH, WIDTH), find_unused_parameters=True))


@on_ranks(2)
def test_unused_parameters_are_named():
    """As with DDP this is an error, on every rank, and it says which."""
    with pytest.raises(ProphetError, match="never.weight"):
        run(trained(Sometimes), Scheduled())


# --- before the first iteration ---


@on_ranks(2)
def test_all_ranks_start_with_the_weights_and_buffers_of_rank_0():
    def make():
        torch.manual_seed(10 + dist.get_rank())
        model = Statistics()
        model.layers[1].running_mean.normal_()
        return model

    same(trained(make))


@on_ranks(2)
def test_a_model_of_another_shape_on_one_rank_is_refused_on_all():
    with pytest.raises(ProphetError, match=r"same model.*\(3, 24\).*\(4, 24\)"):
        run(trained(lambda: nn.Linear(WIDTH, 3 + dist.get_rank())), Scheduled())
    with pytest.raises(ProphetError, match="same model.*bias"):
        run(trained(lambda: nn.Linear(WIDTH, 3, bias=bool(dist.get_rank()))), Scheduled())


@on_ranks(2)
def test_an_evaluation_with_a_ranks_own_buffers_is_said_once_where_they_are_not_those_of_rank_0():
    for make, own in [(Statistics, True), (lambda: nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True), False)]:
        for method in (Scheduled(), ScheduledDDP()):
            model = make()
            forward, optimizer = method.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01))
            with Lines(logging.WARNING) as lines:
                for batch in batches(ITERATIONS, 4, WIDTH):
                    step(forward, optimizer, batch)
                    forward.eval()
                    with torch.no_grad():
                        forward(batch)
                    forward.train()
            method.close()
            said = int(own and type(method) is Scheduled and dist.get_rank() > 0)
            assert len(lines.messages) == said and all("this rank's own buffers" in line for line in lines.messages)


class Moving(nn.Module):
    """Puts another tensor in the place of its buffer in each forward."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, batch):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * batch.detach().mean(0)
        return self.layer(batch - self.mean)


@on_ranks(2)
def test_a_buffer_that_is_replaced():
    same(trained(Moving))


@on_ranks(2)
def test_two_forwards_before_a_backward():
    """As of two views of a batch: the buffers of rank 0 come in between, which the first forward has saved for its backward."""

    def training(method):
        model = Statistics()
        forward, optimizer = method.wrap(model.layers, torch.optim.SGD(model.parameters(), lr=0.1))
        for batch in batches(ITERATIONS, 4, WIDTH):
            optimizer.zero_grad()
            loss = (forward(batch) - forward(2 * batch)).square().mean()
            loss.backward()
            optimizer.step()
            yield loss

    try:
        same(training)
    except RuntimeError as error:  # an older PyTorch's DDP itself
        if "modified by an inplace operation" not in str(error):
            raise


# --- copies ---


@on_ranks(2)
def test_a_copy_of_the_model_is_an_ordinary_model():
    """Made between two iterations, by copy and by pickle; it has the weights of then, and trains on by itself."""

    def training(method):
        import io

        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2))
        forward, optimizer = method.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        for place, batch in enumerate(batches(ITERATIONS, 4, WIDTH)):
            yield step(forward, optimizer, batch)
            if place == ITERATIONS - 2:
                copied = copy.deepcopy(model)
                file = io.BytesIO()
                torch.save(model, file)
                file.seek(0)
                loaded = torch.load(file, weights_only=False)
        for other in (copied, loaded):
            assert all(type(parameter) is nn.Parameter for parameter in other.parameters())
            yield [parameter.detach().clone() for parameter in other.parameters()]
            yield step(other, torch.optim.SGD(other.parameters(), lr=0.1), torch.ones(4, WIDTH))
            yield [parameter.detach().clone() for parameter in other.parameters()]

    same(training)


def two_layers(method):
    """A model after some iterations, its optimizer, and both as ``method`` has wrapped them."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2))
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    forward, optimizer = method.wrap(model, inner)
    for batch in batches(ITERATIONS, 4, WIDTH):
        yield step(forward, optimizer, batch)
    return model, inner, forward, optimizer


@on_ranks(2)
def test_gradients_of_the_last_backward_are_there_after_closing():
    def training(method):
        model, inner, forward, optimizer = yield from two_layers(method)
        *_, batch = batches(ITERATIONS, 4, WIDTH)
        yield backward(forward, optimizer, batch)
        method.close()
        yield [parameter.grad for parameter in model.parameters()]
        inner.step()

    same(training)


@on_ranks(2)
def test_after_closing_the_model_is_an_ordinary_model():
    def training(method):
        model, inner, _, _ = yield from two_layers(method)
        method.close()
        assert all(type(parameter) is nn.Parameter for parameter in model.parameters())
        yield [parameter.detach().clone() for parameter in model.parameters()]
        yield step(model, inner, torch.ones(4, WIDTH))  # of this rank alone, and equal on all
        yield [parameter.detach().clone() for parameter in model.parameters()]

    expected = run(training, Method())
    assert_equal(expected, run(training, Scheduled()), "a plain module")
