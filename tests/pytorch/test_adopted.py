"""A DistributedDataParallel around a scheduled module, which its user or a framework has made: one of the two reduces, never both."""

import copy
import io

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from prophet_mx.errors import CollectiveError, ConfigError
from prophet_mx.torch import ScheduledOptimizer
from support.ranks import on_ranks
from support.sent import sent
from support.training import Method, Scheduled, ScheduledDDP, assert_equal, batches, counted_steps, run, same, step

WIDTH = 24
ITERATIONS = 6


def net():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


class Inside(Scheduled):
    """ScheduledOptimizer is given the module, and the model that trains is a DDP around it, made before or after."""

    def __init__(self, first, around=lambda model: model, **options):
        super().__init__(**options)
        self.first, self.around = first, around

    def wrap(self, model, optimizer, **ddp):
        self.raw = model
        if self.first:
            self.model = DistributedDataParallel(self.around(model), **ddp)
        self.optimizer = ScheduledOptimizer(model, optimizer, **self.options)
        if not self.first:
            self.model = DistributedDataParallel(self.around(model), **ddp)
        return self.model, self.optimizer

    def no_sync(self):
        return self.model.no_sync()


class Holder(nn.Module):
    """A module that has the scheduled one, and uses a part of it without calling the whole."""

    def __init__(self, model):
        super().__init__()
        self.net = model

    def forward(self, batch):
        for module in self.net:
            batch = module(batch)
        return batch


def trained(make=net, **ddp):
    def training(method):
        model = make()
        forward, optimizer = method.wrap(model, sgd(model), **ddp)
        for batch in batches(ITERATIONS, 4, WIDTH):
            yield step(forward, optimizer, batch)

    return training


AROUND = {"the module": lambda model: model, "a holder": Holder, "compiled": lambda model: torch.compile(model, backend="eager")}


@pytest.mark.parametrize("first", [False, True], ids=["made after", "made before"])
@pytest.mark.parametrize("around", AROUND)
@on_ranks(2)
def test_it_is_adopted(first, around):
    same(trained(), Inside(first, AROUND[around]))


@on_ranks(2)
def test_the_gradients_are_sent_once():
    """Seen by the bytes that this rank writes in some iterations."""

    def training(method):
        model = nn.Sequential(nn.Linear(500, 500), nn.Linear(500, 500))
        forward, optimizer = method.wrap(model, sgd(model))
        for batch in batches(4, 2, 500):
            yield step(forward, optimizer, batch)
        getattr(optimizer, "synchronize", int)()
        with sent() as found:
            for batch in batches(4, 2, 500):
                step(forward, optimizer, batch)
            getattr(optimizer, "synchronize", int)()
        counted.append(found[0])

    counted = []
    options = {"unit": 100_000}
    for method in (Method(), Inside(False, **options), Inside(True, **options), ScheduledDDP(**options)):
        run(training, method)
    payload = 4 * 4 * 2 * (500 * 500 + 500)
    assert all(0.95 * payload < each < 1.1 * payload for each in counted), counted


@on_ranks(2)
def test_so_is_the_next_one():
    """Some frameworks make one each time that they train."""

    def training(method):
        model = nn.Sequential(nn.Linear(500, 500), nn.Linear(500, 500))
        forward, optimizer = method.wrap(model, sgd(model))
        for _ in range(2):
            for batch in batches(4, 2, 500):
                yield step(forward, optimizer, batch)
            counted.append((yield from counted_steps(forward, optimizer, 500)))
            forward = DistributedDataParallel(model)

    counted = []
    same(training, Inside(True, unit=100_000), ScheduledDDP(unit=100_000))
    payload = 4 * 4 * 2 * (500 * 500 + 500)
    assert all(0.95 * payload < each < 1.1 * payload for each in counted), counted


@pytest.mark.parametrize("first", [False, True], ids=["made after", "made before"])
@on_ranks(2)
def test_the_way_it_was_made_is_followed(first):
    """Unused parameters where it was told of them, buffers of each rank where it does not send them."""

    class Sometimes(nn.Module):
        def __init__(self):
            super().__init__()
            self.always, self.never, self.norm = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)

        def forward(self, batch):
            return self.norm(self.always(batch))

    same(trained(Sometimes, find_unused_parameters=True), Inside(first))
    same(trained(broadcast_buffers=False), Inside(first))
    with pytest.raises(CollectiveError, match="never.weight"):
        run(trained(Sometimes), Inside(first))


@pytest.mark.parametrize("first", [False, True], ids=["made after", "made before"])
@pytest.mark.parametrize("way", ["no_sync", "attribute"])
@on_ranks(2)
def test_accumulation_from_the_first_iteration_on(first, way):
    """By DDP's no_sync(), and by the attribute that it sets, which some scripts set themselves."""

    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, sgd(model))
        inputs = batches(3 * ITERATIONS, 4, WIDTH)
        for _ in range(ITERATIONS):
            for last in (False, False, True):
                if way == "attribute":
                    forward.require_backward_grad_sync = last
                    forward(next(inputs)).square().mean().backward()
                elif last:
                    forward(next(inputs)).square().mean().backward()
                else:
                    with method.no_sync():
                        forward(next(inputs)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            yield model[0].weight

    same(training, Inside(first), ScheduledDDP())


@on_ranks(2)
def test_after_closing_it_reduces_by_itself():
    def training(method):
        model = net()
        inner = sgd(model)
        forward, optimizer = method.wrap(model, inner)
        for batch in batches(ITERATIONS, 4, WIDTH):
            yield step(forward, optimizer, batch)
        method.close()
        forward.eval()
        with torch.no_grad():
            yield forward(torch.ones(4, WIDTH))  # with the buffers of rank 0
        forward.train()
        for batch in batches(ITERATIONS, 4, WIDTH):
            yield step(forward, inner, batch)
        yield dict(model.named_parameters())

    expected = run(training, Method())
    for method in (Inside(True), Inside(False), ScheduledDDP()):
        assert_equal(expected, run(training, method), type(method).__name__)


@on_ranks(2)
def test_what_cannot_be_adopted_is_refused_with_the_right_line():
    class More(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model, self.more = model, nn.Linear(WIDTH, WIDTH)

        def forward(self, batch):
            return self.more(self.model(batch))

    pair = dist.new_group([dist.get_rank()], use_local_synchronization=True)

    def hooked(model):
        ddp = DistributedDataParallel(model)
        ddp.register_comm_hook(None, default_hooks.allreduce_hook)
        return ddp

    for around, part in [
        (lambda model: DistributedDataParallel(More(model)), r"more.weight.*ScheduledOptimizer\(ddp, optimizer\)"),
        (lambda model: DistributedDataParallel(model, process_group=pair), r"other ranks.*ScheduledOptimizer\(ddp, optimizer\)"),
        (hooked, "communication hook"),
    ]:
        model = net()
        optimizer = ScheduledOptimizer(model, sgd(model))
        ddp = around(model)
        with pytest.raises(ConfigError, match=part):
            ddp(torch.ones(4, WIDTH))
        optimizer.close()


@on_ranks(2)
def test_one_within_the_model_is_refused():
    inner = net()
    model = nn.Sequential(DistributedDataParallel(inner), nn.Linear(WIDTH, WIDTH))
    with pytest.raises(ConfigError, match="'0' is a DistributedDataParallel"):
        ScheduledOptimizer(model, sgd(model))
    model = nn.Sequential(net(), nn.Linear(WIDTH, WIDTH))
    optimizer = ScheduledOptimizer(model, sgd(model))
    model[0] = DistributedDataParallel(model[0])
    with pytest.raises(ConfigError, match="'0' is a DistributedDataParallel"):
        model(torch.ones(4, WIDTH))
    optimizer.close()


@on_ranks(2)
def test_a_forward_within_another_model_is_none_of_our_business():
    """A scheduled module is called in the forward of a DDP that does not have it."""

    class Guided(nn.Module):
        def __init__(self, guide):
            super().__init__()
            self.layer, self.guides = nn.Linear(WIDTH, WIDTH), [guide]

        def forward(self, batch):
            return self.layer(batch) + self.guides[0](batch)

    def training(method):
        guide = net()
        forward, optimizer = method.wrap(guide, sgd(guide))
        if not isinstance(method, Scheduled):
            guide = forward
        other = DistributedDataParallel(Guided(guide))
        others = sgd(other)
        for batch in batches(ITERATIONS, 4, WIDTH):
            others.zero_grad()
            yield step(other, optimizer, batch)
            others.step()
            yield other.module.layer.weight

    same(training, Scheduled())


# --- kinds of DDP, and copies of it ---


@on_ranks(2)
def test_a_static_graph():
    same(trained(static_graph=True), ScheduledDDP(), Inside(True), Inside(False))


@on_ranks(2)
def test_a_static_graph_after_closing():
    def training(method):
        model = net()
        inner = sgd(model)
        forward, optimizer = method.wrap(model, inner, static_graph=True)
        for batch in batches(ITERATIONS, 4, WIDTH):
            yield step(forward, optimizer, batch)
        method.close()
        for batch in batches(ITERATIONS, 4, WIDTH):
            yield step(forward, inner, batch)

    expected = run(training, Method())
    for method in (ScheduledDDP(), Inside(True), Inside(False)):
        assert_equal(expected, run(training, method), type(method).__name__)


def by_torch_save(ddp):
    file = io.BytesIO()
    torch.save(ddp, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPYING = {"deepcopy": copy.deepcopy, "torch.save": by_torch_save}


@pytest.mark.parametrize("copying", COPYING)
@on_ranks(2)
def test_a_copy_of_the_ddp_is_an_ordinary_ddp(copying):
    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, sgd(model))
        for place, batch in enumerate(batches(ITERATIONS, 4, WIDTH)):
            yield step(forward, optimizer, batch)
            if place == ITERATIONS - 2:
                copied = COPYING[copying](forward)
        others = sgd(copied)
        for batch in batches(ITERATIONS, 4, WIDTH):
            yield step(copied, others, batch)
        with copied.join():
            yield step(copied, others, batch)
        yield [dict(copied.named_parameters()), dict(copied.named_buffers())]

    same(training, ScheduledDDP(), Inside(True))


@on_ranks(2)
def test_an_average_of_the_ddp():
    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, sgd(model))
        average = AveragedModel(forward)
        for batch in batches(ITERATIONS, 4, WIDTH):
            yield step(forward, optimizer, batch)
            average.update_parameters(forward)
        yield dict(average.named_parameters())
        yield average(batch)

    same(training, ScheduledDDP(), Inside(True))
