"""Copies between the program's arrays and a parameter's own: what they leave as it was, and which go first."""

import mxnet as mx
import pytest
from benchmarks.testbed.copies import CopyEngines

from prophet_mx import _core
from prophet_mx.mxnet.api import bind
from prophet_mx.mxnet.parameters import new_arrays, new_chunks
from prophet_mx.planning.units import Slice


@pytest.fixture
def driver():
    """One that nothing is sent by."""
    bind()
    _core.cpu_arrays_are_plain(True)
    yield _core.Driver("fifo", 1)
    mx.nd.waitall()
    _core.cpu_arrays_are_plain(not mx.runtime.Features().is_enabled("MKLDNN"))


def parameter(driver, store, key, parts):
    """A parameter in these slices, each copied by itself, and the arrays that it needs."""
    buffer, arrays = new_arrays((parts[-1].stop,), "float32", mx.cpu(), parts)
    chunks = new_chunks(buffer, arrays, parts, 1) if len(parts) > 1 else []
    units = [(driver.add_unit(4 * (part.stop - part.start), 0, key), array.handle.value, key) for part, array in zip(parts, arrays)]
    native = _core.Parameter(
        driver, store.handle.value, buffer.handle.value, units, [(array.handle.value, *where) for array, *where in chunks]
    )
    return native, (buffer, arrays, chunks)


@pytest.mark.parametrize("recording", [True, False])
@pytest.mark.parametrize("slices", [1, 2])
def test_a_copy_leaves_autograd_as_it_is(driver, recording, slices):
    """A program may push within ``autograd.record()``, and go on with its forward."""
    store = mx.kv.create("local")
    native, _arrays = parameter(driver, store, 0, [Slice(0, 4 * part, 4 * part + 4) for part in range(slices)])
    gradient, weight = mx.nd.arange(4 * slices), mx.nd.zeros((4 * slices,))
    weight.attach_grad()
    with mx.autograd.record() if recording else mx.autograd.pause():
        native.pack(gradient.handle.value, 0)
        assert mx.autograd.is_recording() == recording
        native.unpack(weight.handle.value, 0)
        assert mx.autograd.is_recording() == recording
    assert weight.asnumpy().tolist() == list(range(4 * slices))


def test_a_value_does_not_wait_for_gradients_that_are_copied_to_the_host(driver):
    """The layer that it is for waits for it, however little urgent its priority. Two threads make all copies, both ways."""
    store, size, count = mx.kv.create("local"), 125_000, 12  # 0.5 MB, 50 ms each
    large = [parameter(driver, store, key, [Slice(0, 0, size)]) for key in range(count)]
    small, (buffer, _, _) = parameter(driver, store, count, [Slice(0, 0, 8)])
    buffer[:] = 7
    gradients, weight = [mx.nd.ones((size,)) for _ in large], mx.nd.zeros((8,))
    mx.nd.waitall()
    with CopyEngines(10e6, [*gradients, weight]) as device:
        for priority, ((native, _), gradient) in enumerate(zip(large, gradients)):
            native.pack(gradient.handle.value, -priority)
        small.unpack(weight.handle.value, -count)
        weight.wait_to_read()
        copied, _ = device.copied
        assert copied <= 4 * size * count // 2, f"the value came after {copied // (4 * size)} of {count} gradients"
        assert weight.asnumpy().tolist() == [7] * 8
