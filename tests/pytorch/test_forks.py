"""Forked children, signal handlers and threads that use the model at any time see what they would see with DistributedDataParallel."""

import gc
import os
import pickle
import select
import signal
import threading
import time
from random import Random

import pytest
import torch
import torch.distributed as dist
from torch import nn

from support.ranks import on_ranks
from support.training import Scheduled, batches, same, step

WIDTH = 24
ITERATIONS = 8
PATIENCE = 10  # seconds that a child gets


def net():
    return nn.Sequential(nn.Linear(WIDTH, 40), nn.Tanh(), nn.Linear(40, WIDTH), nn.Linear(WIDTH, 2))


def in_child(function):
    """What the function returns in a forked child; the text of an exception."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        gc.disable()  # a process group of an earlier test that is collected in the child crashes it, also without this package
        try:
            answer = function()
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writer, pickle.dumps(answer))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answers:
        hangs = not select.select([answers], [], [], PATIENCE)[0]
        if hangs:
            os.kill(child, signal.SIGKILL)
        answer = answers.read()
    _, status = os.waitpid(child, 0)
    return pickle.loads(answer) if answer else f"the child hangs: {hangs}, and ended with status {status}"


def evaluates(model, optimizer):
    with torch.no_grad():
        return model(torch.ones(2, WIDTH)).tolist()


def reads_gradients(model, optimizer):
    return [each.grad.tolist() for each in model.parameters()]


def reads_last_gradient(model, optimizer):
    return model[3].bias.grad.tolist()


def trains(model, optimizer):
    """By itself, with a new optimizer, as after a fork the ranks are others."""
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    own.zero_grad()
    model(torch.ones(2, WIDTH)).square().mean().backward()
    own.step()
    return [each.tolist() for each in model.parameters()]


@pytest.mark.parametrize("what", [evaluates, reads_gradients], ids=lambda what: what.__name__)
@on_ranks(2)
def test_a_child_uses_the_model(what):
    """After backward, and right after step(), while the updates wait for the other rank."""

    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for place, batch in enumerate(batches(ITERATIONS, 4, WIDTH)):
            optimizer.zero_grad()
            forward(batch).square().mean().backward()
            if place % 2:
                yield in_child(lambda: what(model, optimizer))
            if dist.get_rank():
                time.sleep(0.03)
            optimizer.step()
            if place % 3:
                yield in_child(lambda: what(model, optimizer))

    same(training)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a process that has used autograd cannot train in a fork where PyTorch has a GPU")
@on_ranks(2)
def test_a_child_trains_the_plain_module():
    """Nothing of its gradients goes to other ranks."""

    def training(method):
        model = net()
        forward, optimizer = method.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for batch in batches(ITERATIONS, 4, WIDTH):
            step(forward, optimizer, batch)
            if isinstance(method, Scheduled):
                found = in_child(lambda: trains(model, optimizer))
            else:
                copy = net()
                copy.load_state_dict(model.state_dict())
                found = trains(copy, None)
            yield found

    same(training, Scheduled())


@on_ranks(2)
def test_a_child_of_the_middle_of_backward_does_not_hang():
    model = net()
    method = Scheduled()
    forward, optimizer = method.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    found = []
    for place, batch in enumerate(batches(5, 4, WIDTH)):
        if place == 4:
            model[1].register_full_backward_hook(lambda *_: found.append(in_child(lambda: evaluates(model, optimizer))))
            expected = evaluates(model, optimizer)
            found.append(expected)
            model[1].register_full_backward_hook(lambda *_: found.append(in_child(lambda: reads_last_gradient(model, optimizer))))
        step(forward, optimizer, batch)
    assert found[1] == found[0]
    assert found[2].startswith("CollectiveError: "), found[2]
    method.close()


def looks(random, model, optimizer):
    """One of the things that others than the training do at any time."""
    what = random.randrange(4)
    if what == 0:
        random.choice(list(model.parameters())).detach().sum().item()
    elif what == 1:
        {name: value.sum().item() for name, value in model.state_dict().items()}
    elif what == 2:
        optimizer.state_dict()
    elif hasattr(optimizer, "stats"):
        assert not optimizer.stats().get("failure"), optimizer.stats()


def disturbed(seed):
    """A training while a thread and signals' handlers look at it at random, and children evaluate the model."""

    def training(method):
        random = Random(100 * seed + dist.get_rank())
        model = net()
        forward, optimizer = method.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        done, errors, handled = threading.Event(), [], []

        def reads():
            own = Random(random.random())
            while not done.wait(own.random() / 500):
                try:
                    looks(own, model, optimizer)
                except BaseException as error:
                    errors.append(error)
                    return

        def handle(*_):
            looks(random, model, optimizer)
            handled.append(len(handled))
            signal.setitimer(signal.ITIMER_REAL, 0.0005 + random.random() / 400)  # a handler is not interrupted by the next one

        before = signal.signal(signal.SIGALRM, handle)
        thread = threading.Thread(target=reads)
        thread.start()
        signal.setitimer(signal.ITIMER_REAL, 0.002)
        try:
            for batch in batches(30, 4, WIDTH):
                yield step(forward, optimizer, batch)
                if random.random() < 0.2:
                    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
                    found, expected = in_child(lambda: evaluates(model, optimizer)), evaluates(model, optimizer)
                    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
                    assert found == expected, found
                if random.random() < 0.2:
                    time.sleep(random.random() / 200)
        finally:
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            done.set()
            thread.join()
        assert not errors, errors
        assert handled

    return training


@pytest.mark.parametrize("seed", range(3))
@on_ranks(2)
def test_signals_forks_and_threads_at_random(seed):
    same(disturbed(seed))
