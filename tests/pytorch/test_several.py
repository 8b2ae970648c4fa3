"""Several optimizers of one model, each with parameters of its own, as Muon for matrices and AdamW for all else."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from prophet_mx.errors import ConfigError
from prophet_mx.torch import ScheduledOptimizer
from prophet_mx.torch.trial import AFTER, BLOCK, TURNS, Times
from support.ranks import on_ranks
from support.training import METHODS, UNIT, WARMUP, Method, ScheduledDDP, assert_equal, backward, batches, run, same

WIDTH = 24
ITERATIONS = 30


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 40), nn.BatchNorm1d(40), nn.Tanh(), nn.Linear(40, WIDTH), nn.Linear(WIDTH, 2))


class Whole(torch.optim.Optimizer):
    """A Muon as people write it: not known to treat each parameter by itself."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    momentum = self.state[param].setdefault("momentum", torch.zeros_like(param))
                    momentum.mul_(0.9).add_(param.grad)
                    left, _, right = torch.linalg.svd(momentum, full_matrices=False)
                    param.add_(left @ right, alpha=-group["lr"])


MUON = getattr(torch.optim, "Muon", Whole)  # from PyTorch 2.9 on


def pair(model, kind=MUON):
    """The two plain optimizers; the second has two groups."""
    matrices = [each for each in model.parameters() if each.ndim == 2]
    biases, others = (
        [each for name, each in model.named_parameters() if each.ndim < 2 and ("bias" in name) is yes] for yes in (True, False)
    )
    return kind(matrices, lr=0.02), torch.optim.AdamW([{"params": biases}, {"params": others, "lr": 0.003, "weight_decay": 0.0}], lr=0.01)


def wrapped(method, model, optimizers):
    """The model and the optimizers to train with. :meth:`Method.wrap` takes the first; the second is wrapped as users do it."""
    first, second = optimizers
    forward, first = method.wrap(model, first)
    return forward, first, ScheduledOptimizer(forward, second) if isinstance(first, ScheduledOptimizer) else second


def both(method, kind=MUON, each=lambda *_: None, order=(0, 1), every=1, schedules=False):
    model = net()
    forward, *optimizers = wrapped(method, model, pair(model, kind))
    schedulers = [torch.optim.lr_scheduler.LambdaLR(each, lambda epoch: 1 / (1 + epoch / 4)) for each in optimizers if schedules]
    for number, batch in enumerate(batches(ITERATIONS, 4, WIDTH)):
        for optimizer in optimizers:
            if optimizer is optimizers[0] or number % every == 0:
                optimizer.zero_grad()
        loss = forward(batch).square().mean()
        loss.backward()
        each(model, optimizers)
        for index in order or (dist.get_rank(), 1 - dist.get_rank()):
            if index == 0 or number % every == every - 1:
                optimizers[index].step()
        for scheduler in schedulers:
            scheduler.step()
        yield loss
    yield [optimizer.state_dict() for optimizer in optimizers]


def clips(model, optimizers):
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)


def clips_one(model, optimizers):
    nn.utils.clip_grad_norm_([param for group in optimizers[1].param_groups for param in group["params"]], 0.01)


WAYS = {
    "plain": {},
    "the other order, and schedules": {"order": (1, 0), "schedules": True},
    "another order on each rank": {"order": None},
    "one less often": {"every": 3},
    "clipped": {"each": clips},
    "one clipped": {"each": clips_one},
    "one as a whole": {"kind": Whole},
    "one as a whole, last": {"kind": Whole, "order": (1, 0), "every": 2},
}


@pytest.mark.parametrize("way", WAYS)
@on_ranks(2, timeout=120)
def test_bit_for_bit(way):
    same(lambda method: both(method, **WAYS[way]))


@on_ranks(2, timeout=120)
def test_each_gradient_travels_once_and_updates_do_not_wait_for_the_other_step():
    model = net()
    muon, adamw = pair(model)
    first = ScheduledOptimizer(model, muon, warmup=WARMUP, unit=UNIT)
    second = ScheduledOptimizer(model, adamw)
    assert first.param_groups is muon.param_groups and second.param_groups is adamw.param_groups
    size = sum(each.numel() * each.element_size() for each in model.parameters())
    for batch in batches(2 * WARMUP, 4, WIDTH):
        second.zero_grad()
        backward(model, first, batch)
        first.step()
        before = model[0].bias.detach().clone()
        first.synchronize()
        assert all(param in muon.state for group in muon.param_groups for param in group["params"])
        assert torch.equal(before, model[0].bias)
        second.step()
        second.synchronize()
        assert not torch.equal(before, model[0].bias)
    stats = second.stats()
    assert stats["iterations"] == first.stats()["iterations"] == 2 * WARMUP and stats["bytes"] == 2 * WARMUP * size
    second.close()
    with pytest.raises(ConfigError, match="closed"), first.no_sync():
        pass


@on_ranks(2, timeout=120)
def test_states_that_are_saved_and_loaded():
    def training(method, loads):
        model = net()
        forward, *optimizers = wrapped(method, model, pair(model))
        for number, batch in enumerate(batches(12, 4, WIDTH)):
            if number == 6 and loads:
                saved = model.state_dict(), [each.state_dict() for each in optimizers]
                for optimizer in optimizers:
                    getattr(optimizer, "close", lambda: None)()
                model = net()
                forward, *optimizers = wrapped(method, model, pair(model))
                model.load_state_dict(saved[0])
                for optimizer, state in zip(optimizers, saved[1]):
                    optimizer.load_state_dict(state)
            backward(forward, optimizers[0], batch)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        yield [each.state_dict() for each in optimizers]

    expected = run(lambda method: training(method, loads=False), Method())
    for loads in (False, True):
        for make in METHODS.values():
            assert_equal(expected, run(lambda method, loads=loads: training(method, loads), make()), make.__name__)


@on_ranks(2, timeout=120)
def test_a_scaler_that_leaves_out_the_step_of_one():
    def training(method):
        model = net()
        forward, *optimizers = wrapped(method, model, pair(model))
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for number, batch in enumerate(batches(12, 4, WIDTH)):
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = forward(batch).square().mean()
            scaler.scale(loss).backward()
            if number % 4 == 3:
                model[0].bias.grad.fill_(float("inf"))
            scaler.unscale_(optimizers[1])
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
            yield loss, scaler.get_scale()

    same(training)


@on_ranks(2, timeout=120)
def test_a_job_that_goes_on_with_ddp_alone():
    class Tried(ScheduledDDP):
        slow = 0.0

        def wrap(self, model, optimizer, **ddp):
            found = super().wrap(model, optimizer, **ddp)
            self.optimizer._schedule.trial._agreed = lambda mine: Times([2.0] * len(mine.ddp), [1.0] * len(mine.ddp))
            return found

        def check(self):
            self.planned = True
            self.ended = self.optimizer.stats()["policy"] == "off"

    def training(method):
        model = net()
        forward, *optimizers = wrapped(method, model, pair(model))
        for batch in batches(WARMUP + AFTER + 2 * TURNS * BLOCK + 8, 4, WIDTH):
            backward(forward, optimizers[0], batch)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        yield [each.state_dict() for each in optimizers]

    tried = Tried(fallback="auto")
    assert_equal(run(training, Method()), run(training, tried), "tried")
    assert tried.ended


REFUSED = {
    "a parameter twice": (lambda model: ScheduledOptimizer(model, torch.optim.SGD([model[0].weight], lr=0.1)), "'0.weight'.*already"),
    "another setting": (lambda model: ScheduledOptimizer(model, pair(model)[1], compress="bf16"), "compress='bf16'.*second optimizer"),
    "unused": (lambda model: ScheduledOptimizer(model, pair(model)[1], find_unused_parameters=True), "find_unused_parameters=True"),
    "a part": (lambda model: ScheduledOptimizer(model[1:], torch.optim.SGD(model[1:].parameters(), lr=0.1)), "already.*the same model"),
    "a list": (lambda model: ScheduledOptimizer(model, list(pair(model))), "is a list.*each of several by itself, with the same model"),
}


@on_ranks(2, timeout=120)
def test_what_cannot_be():
    model = net()
    with ScheduledOptimizerOf(model) as first:
        for make, words in REFUSED.values():
            with pytest.raises(ConfigError, match=words):
                make(model)
        second = ScheduledOptimizer(DistributedDataParallel(model), pair(model)[1])
        with pytest.raises(ConfigError, match="already"):
            second.add_param_group({"params": [model[0].weight]})
        assert first.stats()["policy"] == second.stats()["policy"] == "prophet"
    third = ScheduledOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))
    third.close()


class ScheduledOptimizerOf:
    """The first of two, while something is tried."""

    def __init__(self, model):
        self.optimizer = ScheduledOptimizer(model, pair(model)[0], warmup=WARMUP, unit=UNIT)

    def __enter__(self):
        return self.optimizer

    def __exit__(self, *_):
        self.optimizer.close()
