"""Parameters that only C++ code reads, as those that a custom autograd function gets: they wait where their module is called."""

import pytest
import torch
from torch import nn, optim

from prophet_mx.torch.guards import GuardedParameter
from prophet_mx.torch.homes import Homes
from prophet_mx.torch.tracked import Tracked
from support.ranks import on_ranks
from support.training import METHODS, batches, same, step

ITERATIONS = 9
WIDTH = 12


class Scale(torch.autograd.Function):
    """Uses what it is given unseen: no guard is asked."""

    @staticmethod
    def forward(ctx, x, *scales):
        ctx.save_for_backward(x, *scales)
        for scale in scales:
            x = x * scale.detach().as_subclass(torch.Tensor)
        return x

    @staticmethod
    def backward(ctx, grad):
        x, *scales = ctx.saved_tensors
        factors = [scale.as_subclass(torch.Tensor) for scale in scales]
        product = torch.stack(factors).prod(0)
        return (grad * product, *[(grad * x * product / factor).sum(0) for factor in factors])


class Unseen(torch.autograd.Function):
    """Adds the sum of parameters that it reads by their addresses."""

    @staticmethod
    def forward(ctx, x, *params):
        ctx.count = len(params)
        with torch._C.DisableTorchFunctionSubclass():
            total = sum(param.data.sum() for param in params)
        return x * (1 + 0.01 * total)

    @staticmethod
    def backward(ctx, grad):
        return (grad, *[torch.full((WIDTH,), float(grad.sum()) / WIDTH) for _ in range(ctx.count)])


class Block(nn.Module):
    """Its parameters lie in lists, which nobody calls."""

    def __init__(self):
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.rand(WIDTH) + 0.5) for _ in range(2)])
        self.more = nn.ModuleDict({"inner": nn.ModuleList([nn.ParameterDict({"one": nn.Parameter(torch.rand(WIDTH))})])})

    def forward(self, x):
        return Unseen.apply(x, *self.scales, self.more["inner"][0]["one"])


class Holder(nn.Module):
    """Never called; the model reads its parameters unseen."""

    def __init__(self):
        super().__init__()
        self.held = nn.ParameterList([nn.Parameter(torch.rand(WIDTH))])

    def forward(self):
        raise AssertionError("nobody calls it")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.holder = Holder()
        self.shared = Block()
        self.blocks = nn.Sequential(*[Block() for _ in range(3)])
        self.blocks[1].scales[0] = self.shared.scales[1]

    def forward(self, x):
        x = Unseen.apply(x, *self.holder.held)
        return self.blocks(self.shared(x))


@pytest.mark.parametrize("name", METHODS)
@on_ranks(2)
def test_they_wait_where_their_module_is_called(name):
    seen = []

    def training(method):
        model = Net()
        forward, optimizer = method.wrap(model, optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
        late = model.blocks[2]
        watched = [*late.scales, late.more["inner"][0]["one"]]
        seen.clear()
        model.shared.register_forward_hook(lambda *_: seen.append([type(each) is GuardedParameter for each in watched]))
        late.register_forward_hook(lambda *_: seen.append([type(each) is GuardedParameter for each in watched]))
        for batch in batches(ITERATIONS, 4, WIDTH):
            yield step(forward, optimizer, batch)

    same(training, METHODS[name]())
    assert seen[-2:] == [[True] * 3, [False] * 3], "the last block's parameters waited before the first block ran, or not at all"


def test_a_home_helps_only_if_it_was_called_in_the_forward_that_used_the_parameter():
    """One that was called before that has not waited for this use: the next forward has to."""
    block, owner = Block(), object()
    tracked = [Tracked(param, f"p{index}", index) for index, param in enumerate(block.parameters())]
    homes = Homes()
    handles = homes.find(nn.Sequential(block), {id(each.param): each for each in tracked}, owner)
    homes.begin_forward()
    assert not homes.take(tracked[0])
    block(torch.ones(1, WIDTH))
    assert homes.take(tracked[0]) and not homes.take(tracked[0])  # it waits there already: that has not helped
    homes.begin_forward()
    assert not homes.take(tracked[1])
    block(torch.ones(1, WIDTH))
    assert homes.take(tracked[1])
    for handle in handles:
        handle.remove()


@on_ranks(2)
def test_a_block_that_is_left_out_in_the_warm_up_is_found_later():
    """Only rarely called, with parameters that are then used: the model's own forward does not wait for them, but the block does."""

    def training(method):
        model = Net()
        forward, optimizer = method.wrap(model, optim.SGD(model.parameters(), lr=0.05), find_unused_parameters=True)
        blocks = list(model.blocks)
        for number, batch in enumerate(batches(3 * ITERATIONS, 4, WIDTH)):
            model.blocks = nn.Sequential(*(blocks if number % 4 else blocks[:2]))
            yield step(forward, optimizer, batch)

    same(training)
