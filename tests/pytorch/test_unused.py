"""Parameters that some iterations do not use, with ``find_unused_parameters=True``, and the gradients that they have already."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from prophet_mx import ProphetError
from prophet_mx.torch import ScheduledOptimizer
from support.ranks import on_ranks
from support.training import METHODS, UNIT, WARMUP, Scheduled, ScheduledDDP, batches, same

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


class OptionalFirst(Some):
    """Its first parameters are those that are not always used."""

    def __init__(self):
        super().__init__()
        self.always = self._modules.pop("always")


def wrapped(method, kind=Some):
    model = kind()
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


@pytest.mark.parametrize("clip", [False, True], ids=["read", "clipped"])
@on_ranks(2)
def test_a_step_that_is_left_out(clip):
    """As by GradScaler. The next backward does not reach the model's first parameter on rank 0, and that gradient is read first."""

    def training(method):
        model, _, forward, optimizer = wrapped(method, OptionalFirst)
        for number, batch in enumerate(batches(ITERATIONS, 4, WIDTH)):
            optimizer.zero_grad()
            forward(batch, (0, 1) if number % 2 == 0 else ((), (0,))[dist.get_rank()]).square().mean().backward()
            if number % 2 == 0:
                continue
            yield nn.utils.clip_grad_norm_(model.parameters(), 0.1) if clip else [each.grad for each in model.parameters()]
            optimizer.step()

    same(training)


@pytest.mark.parametrize("way", ["None", "deleted", "a tensor"])
@on_ranks(2)
def test_a_gradient_that_the_program_sets(way):
    """Of parameters that only rank 1 has reached, or no rank."""

    def training(method):
        model, _, forward, optimizer = wrapped(method)
        for number, batch in enumerate(batches(ITERATIONS, 4, WIDTH)):
            if number % 4 != 1:
                optimizer.zero_grad()
            yield backward(forward, batch, 3 if number % 3 else number)
            for part in model.parts:
                if way == "deleted":
                    del part.weight.grad
                else:
                    part.weight.grad = None if way == "None" else torch.full((WIDTH, WIDTH), float(number))
            optimizer.step()
            yield [each.detach() for each in model.parameters()]

    same(training)


@on_ranks(2)
def test_nothing_is_under_way_after_synchronize():
    """Between backward and step(), so that the program may start collectives of its own."""

    def training(method):
        _, _, forward, optimizer = wrapped(method)
        for number, batch in enumerate(batches(ITERATIONS, 4, WIDTH)):
            optimizer.zero_grad()
            yield backward(forward, batch, number)
            if isinstance(method, Scheduled):
                optimizer.synchronize()
                assert not any(each.unlanded for each in optimizer._exchange.tracked)
            optimizer.step()

    same(training)


def gradients(loss, params):
    """Of this rank's loss; zeros for parameters that it does not depend on."""
    found = torch.autograd.grad(loss, params, retain_graph=True, allow_unused=True)
    return [torch.zeros(param.shape) if each is None else each.clone() for each, param in zip(found, params)]


@on_ranks(2, timeout=40)
def test_accumulation_after_a_backward_that_uses_less():
    """A plain module's no_sync() may be around backward alone. All forwards come first, so that none of them ends the round before."""
    model = Some()
    optimizer = ScheduledOptimizer(
        model, torch.optim.SGD(model.parameters(), lr=0.05), find_unused_parameters=True, warmup=WARMUP, unit=UNIT
    )
    rank, params = dist.get_rank(), list(model.parameters())
    inputs = batches(2 * ITERATIONS, 4, WIDTH)
    for first, second in zip(inputs, inputs):
        one, two = model(first, ((), (0,))[rank]).square().mean(), model(second, ((0, 1), (1,))[rank]).square().mean()
        means, mine = (gradients(loss, params) for loss in (one, two))
        for grad in means:
            dist.all_reduce(grad)
        optimizer.zero_grad()
        one.backward()
        with optimizer.no_sync():
            two.backward()
        for param, mean, own in zip(params, means, mine):
            torch.testing.assert_close(torch.zeros(param.shape) if param.grad is None else param.grad, mean / 2 + own)
        optimizer.zero_grad()
        model(first, (0, 1)).square().mean().backward()
        optimizer.step()
    optimizer.close()


@on_ranks(2, timeout=40)
def test_a_backward_in_no_sync_between_two_of_a_round_is_an_error():
    """Where all parameters are to be used, and the first of the two has not reached all: its sums would be waited for without end."""
    model = Some()
    optimizer = ScheduledOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.05), warmup=WARMUP)
    [batch] = batches(1, 4, WIDTH)
    one, two = (model(batch, used).square().mean() for used in ((), ()))
    one.backward()
    with optimizer.no_sync(), pytest.raises(ProphetError, match="no gradient for parts.0.weight"):
        two.backward()
    dist.barrier()
    optimizer.close()


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
