"""The driver on MXNet's engine, in this process: what it holds, and what it tells."""

import mxnet as mx
import numpy as np
import pytest

from prophet_mx import _core
from prophet_mx.mxnet.api import bind
from prophet_mx.mxnet.parameters import alias


class Job:
    """Some small parameters of a local store, in which nobody has to answer. The window lets out one unit at a time."""

    def __init__(self, count):
        bind()
        self.driver = _core.Driver("fifo", 1, 1, 0, 1e-3)
        self.store, self.layers = mx.kv.create("local"), []
        for key in range(count):
            value, buffer = mx.nd.zeros((4,)), mx.nd.zeros((4,))
            self.store.init(key, value)
            unit = self.driver.add_unit(16, 0, key)
            parts = [(unit, buffer.handle.value, key)]
            self.layers.append((value, buffer, _core.Parameter(self.driver, self.store.handle.value, buffer.handle.value, parts)))
        mx.nd.waitall()

    def push(self, iteration):
        for key, (value, _, native) in enumerate(self.layers):
            gradient = mx.nd.full((4,), key + iteration)
            native.pushpull(gradient.handle.value, value.handle.value, iteration, 0)

    def values(self):
        return [value.asnumpy().tolist() for value, _, _ in self.layers]


@pytest.fixture
def job():
    made = Job(3)
    made.driver.start()
    yield made
    made.driver.stop()
    mx.nd.waitall()


def test_each_gradient_that_becomes_ready_is_told_with_its_iteration(job):
    for iteration in (4, 5):
        job.push(iteration)
        mx.nd.waitall()
    events = job.driver.take_events()
    assert sorted((iteration, gradient) for iteration, gradient, _ in events) == [(4, 0), (4, 1), (4, 2), (5, 0), (5, 1), (5, 2)]
    assert [seconds for _, _, seconds in events] == sorted(seconds for _, _, seconds in events)
    assert job.driver.take_events() == []


def test_after_the_end_nothing_is_held(job):
    job.driver.release_all()
    for iteration in (1, 2):
        job.push(iteration)
    assert job.values() == [[key + 2] * 4 for key in range(3)]
    assert job.driver.progress() == (0, 6, "")


def test_a_groups_message_says_which_members_it_carries():
    """Behind the members is a word for each. What is left of an earlier message would be taken for a gradient."""
    bind()
    driver, store, word = _core.Driver("fifo", 1), mx.kv.create("local"), np.ones(1, np.float32).tobytes()  # of one worker
    wire, gradients, values = (mx.nd.zeros((elements,)) for elements in (10, 8, 8))
    parts = [[alias(flat[start : start + 4]) for start in (0, 4)] for flat in (gradients, values)]
    store.init(0, wire)
    unit = driver.add_unit(32, 0, 0)
    arrays = [array.handle.value for array in (wire, gradients, values)]
    group = _core.Group(driver, store.handle.value, unit, 0, *arrays, [(0, 16), (1, 16)], word, word)
    members = [
        _core.Parameter(
            driver, store.handle.value, gradient.handle.value, [(unit, gradient.handle.value, 0)], (), group, index, value.handle.value
        )
        for index, (gradient, value) in enumerate(zip(*parts))
    ]
    mx.nd.waitall()
    driver.start()
    for iteration, (index, number) in enumerate([(0, 5), (1, 6), (0, 7)]):
        gradient, out = mx.nd.full((4,), number), mx.nd.zeros((4,))
        members[index].pushpull(gradient.handle.value, out.handle.value, iteration, 0)
        assert out.asnumpy().tolist() == [number] * 4
        assert wire.asnumpy()[8:].tolist() == [1 - index, index]
    mx.nd.waitall()
    group.check()
    driver.stop()
