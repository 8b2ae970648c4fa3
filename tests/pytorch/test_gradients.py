"""Gradients that the program keeps or holds over later iterations are what they would be with DistributedDataParallel."""

import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

from prophet_mx import ProphetError
from prophet_mx.torch.updates import Update
from support.lines import Lines
from support.ranks import on_ranks
from support.training import METHODS, batches, run, same, step

ITERATIONS = 6
WIDTH = 24


def net():
    return nn.Sequential(nn.Linear(WIDTH, 40), nn.Tanh(), nn.Linear(40, WIDTH), nn.Linear(WIDTH, 2))


def gradients(model):
    return [each.grad for each in model.parameters()]


def keeps_unread(before, model):
    return gradients(model)


def keeps_aliases(before, model):
    """They share the gradient's memory, and are not the tensor itself."""
    return [part for each in gradients(model) for part in (each.detach(), each[0], each.view(-1)[1:], torch.from_numpy(each.numpy()))]


def keeps_some(before, model):
    """The same tensors from one iteration to the next where it can be."""
    return [each if place % 2 else old for place, (each, old) in enumerate(zip(gradients(model), before or gradients(model)))]


def keeps_the_first(before, model):
    return before or gradients(model)


def keeping(keep, when, set_to_none):
    """A training that keeps something of each iteration's gradients, and looks at it before the next step and after it."""

    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        kept = None
        for batch in batches(ITERATIONS, 4, WIDTH):
            optimizer.zero_grad(set_to_none)
            loss = forward(batch).square().mean()
            loss.backward()
            if when == "before step":
                now = keep(kept, model)
            if kept is not None and when != "after use":
                yield list(kept)
            optimizer.step()
            if when == "after step":
                now = keep(kept, model)
            if when == "after use":
                yield [each.sum() for each in model.parameters()]
                now = keep(kept, model)
                yield list(kept or [])
            kept = now

    return training


@pytest.mark.parametrize("set_to_none", [True, False], ids=["set to None", "set to zero"])
@pytest.mark.parametrize("when", ["before step", "after step", "after use"])
@on_ranks(2, timeout=150)
def test_kept_gradients(when, set_to_none):
    for keep in (keeps_unread, keeps_aliases, keeps_some, keeps_the_first):
        same(keeping(keep, when, set_to_none))


@on_ranks(2)
def test_gradients_in_memory_of_the_program():
    """Each ``grad`` is a part of one tensor that the program has made, and that tells all gradients at once."""

    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
        flat, place = torch.zeros(sum(each.numel() for each in model.parameters())), 0
        for each in model.parameters():
            each.grad = flat[place : place + each.numel()].view_as(each)
            place += each.numel()
        for batch in batches(ITERATIONS, 4, WIDTH):
            flat.zero_()
            forward(batch).square().mean().backward()
            optimizer.step()
            yield [each.grad.sum() for each in model.parameters()]
            yield flat

    same(training)


@on_ranks(2)
def test_a_tensor_that_the_program_has_set_as_gradient_may_be_written_once_step_returns():
    """However long updates take. Those by sums do not wait."""
    apply = Update.apply

    def slowly(update, members):
        time.sleep(0.05)
        apply(update, members)

    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for batch in batches(ITERATIONS, 4, WIDTH):
            optimizer.zero_grad()
            forward(batch).square().mean().backward()
            own = model[0].weight.grad.sign() * 0.01
            model[0].weight.grad = own
            optimizer.step()
            own.fill_(1000.0)
            yield [each.sum() for each in model.parameters()]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Update, "apply", slowly)
        same(training)


@on_ranks(2)
def test_gradients_that_nobody_keeps_are_not_copied():
    """Their memory is that of the flat buffer, iteration for iteration, also where a program looks whether there are any. Nor does backward
    wait for their sums."""
    for make in METHODS.values():
        method = make()

        def training(method):
            model = net()
            forward, optimizer = method.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
            seen = set()
            for place, batch in enumerate(batches(ITERATIONS, 4, WIDTH)):
                step(forward, optimizer, batch)
                assert all(each.grad is not None for each in model.parameters())
                optimizer.synchronize()
                if place == ITERATIONS // 2:
                    seen = {each.view.data_ptr() for each in optimizer._exchange.tracked}
                    objects = [id(each.view) for each in optimizer._exchange.tracked]
            yield "done"
            assert seen and [id(each.view) for each in optimizer._exchange.tracked] == objects
            assert all(each.kept is None for each in optimizer._exchange.tracked)

        with Lines() as lines:
            run(training, method)
        assert not [line for line in lines.messages if "gradients are read before step()" in line]


@on_ranks(2)
def test_accumulated_gradients_that_are_kept():
    """Two backward passes to a step, the first without a reduction: the tensor that is ``grad`` stays the same one."""

    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
        kept = []
        for place, batch in enumerate(batches(2 * ITERATIONS, 4, WIDTH)):
            if place % 2 == 0:
                optimizer.zero_grad()
                with method.no_sync():
                    forward(batch).square().mean().backward()
                kept.append(gradients(model))
            else:
                forward(batch).square().mean().backward()
                yield kept[-1]
                optimizer.step()
                yield kept[-1]
        yield kept

    same(training)


@on_ranks(2)
def test_gradients_that_are_read_in_inference_mode():
    """What is made there cannot be written by the next backward."""

    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for number, batch in enumerate(batches(2 * ITERATIONS, 4, WIDTH)):
            optimizer.zero_grad()
            forward(batch).square().mean().backward()
            if number % 3 == 1:
                with torch.inference_mode():
                    yield [each.norm() for each in gradients(model)]
            optimizer.step()
            if number % 3 == 0:
                with torch.inference_mode():
                    yield [each.norm() for each in gradients(model)]
                    yield forward(batch)

    same(training)


@pytest.mark.parametrize("place", [0, -1], ids=["the last one of backward", "another one"])
@on_ranks(2)
def test_a_gradient_that_is_read_during_backward_is_refused(place):
    """DDP would show this rank's own there."""
    for make in METHODS.values():
        method = make()
        model = net()
        forward, _ = method.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
        model[place].weight.register_post_accumulate_grad_hook(lambda param: print(param.grad.norm()))
        with pytest.raises(ProphetError, match="cannot be read during backward"):
            forward(torch.ones(4, WIDTH)).square().mean().backward()
        dist.barrier()
        method.close()
