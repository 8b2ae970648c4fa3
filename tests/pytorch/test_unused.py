"""Parameters that some iterations do not use, with ``find_unused_parameters=True``, and the gradients that they have already."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from prophet_mx import ProphetError
from support.ranks import on_ranks
from support.training import METHODS, Scheduled, ScheduledDDP, batches, same

WIDTH = 24
ITERATIONS = 10
USED = [((0, 1), (0, 1)), ((), ()), ((0,), (0,)), ((0,), (1,)), ((), (1,))]  # by ranks 0 and 1, in one backward after the other


class Some(nn.Module):
    """Forward is told which parts to use."""

    def __init__(self):
        super().__init__()
        self.always = nn.Linear(WIDTH, WIDTH)
        self.parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, batch, used):
        batch = torch.tanh(self.always(batch))
        for index in used:
            batch = self.parts[index](batch)
        return batch


def backward(forward, batch, number):
    loss = forward(batch, USED[number % len(USED)][dist.get_rank()]).square().mean()
    loss.backward()
    return loss


def wrapped(method):
    model = Some()
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    return model, inner, *method.wrap(model, inner, find_unused_parameters=True)


@pytest.mark.parametrize("clear", ["never", "to zero", "to None"])
@on_ranks(2)
def test_a_gradient_stays_that_no_rank_makes_anew(clear):
    """And is stepped again."""

    def training(method):
        model, _, forward, optimizer = wrapped(method)
        for number, batch in enumerate(batches(ITERATIONS, 4, WIDTH)):
            if clear != "never":
                optimizer.zero_grad(set_to_none=clear == "to None")
            yield backward(forward, batch, number)
            if number % 3 == 2:
                yield [each.grad for each in model.parameters()]
            optimizer.step()
            if number % 4 == 3:
                yield [each.grad for each in model.parameters()]

    same(training)


@pytest.mark.parametrize("clip", [False, True])
@on_ranks(2)
def test_several_backwards_for_a_step(clip):
    """Each is reduced, and uses other parts."""

    def training(method):
        model, _, forward, optimizer = wrapped(method)
        for number, batch in enumerate(batches(2 * ITERATIONS, 4, WIDTH)):
            if number % 2 == 0:
                optimizer.zero_grad()
            yield backward(forward, batch, number)
            if number % 2 == 1:
                if clip:
                    yield nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()

    options = {"clipping": "overlap"} if clip else {}
    same(training, Scheduled(**options), ScheduledDDP(**options))


@on_ranks(2)
def test_a_gradient_that_the_program_holds():
    """It is the same tensor, whichever rank has used the parameter."""

    def training(method):
        model, _, forward, optimizer = wrapped(method)
        for part in model.parts:
            part.weight.grad = torch.zeros(WIDTH, WIDTH)
        held = [(part.weight.grad, part.weight.grad[1:]) for part in model.parts]
        for number, batch in enumerate(batches(ITERATIONS, 4, WIDTH)):
            yield backward(forward, batch, number)
            optimizer.step()
            yield held
            yield [each.grad is one for each, (one, _) in zip((part.weight for part in model.parts), held)]

    same(training)


@on_ranks(2)
def test_gradients_of_the_last_backward_are_there_after_closing():
    def training(method):
        model, inner, forward, optimizer = wrapped(method)
        for number, batch in enumerate(batches(ITERATIONS - 1, 4, WIDTH)):
            optimizer.zero_grad()
            yield backward(forward, batch, number)
            if number < ITERATIONS - 2:
                optimizer.step()
        method.close()
        yield [each.grad for each in model.parameters()]
        inner.step()

    same(training)


class PlannedError(Exception):
    """Raised in backward."""


@pytest.mark.parametrize("method", METHODS)
@on_ranks(2)
def test_a_backward_that_raises_is_no_backward_that_uses_less(method):
    """As with DDP: other ranks may have stepped with their gradients."""
    made = METHODS[method]()
    model, _, forward, optimizer = wrapped(made)

    def raises(*_):
        raise PlannedError

    for number, batch in enumerate(batches(4, 4, WIDTH)):
        optimizer.zero_grad()
        backward(forward, batch, number)
        optimizer.step()
    handle = model.always.weight.register_hook(raises)
    with pytest.raises(PlannedError):
        backward(forward, batch, 0)
    handle.remove()
    with pytest.raises(ProphetError, match="backward raised"):
        optimizer.zero_grad()
        backward(forward, batch, 0)
        optimizer.step()
    dist.barrier()
    made.close()
