"""The driver on MXNet's engine, in this process: what it holds, and what it tells."""

import mxnet as mx
import pytest

from prophet_mx import _core
from prophet_mx.mxnet.api import bind


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
