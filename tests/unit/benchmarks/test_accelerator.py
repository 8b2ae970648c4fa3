"""The emulated accelerator: order, dependencies, times, values."""

import ctypes
import os
import threading
import time

import mxnet as mx
import pytest
from benchmarks.testbed.accelerator import Accelerator

from prophet_mx.mxnet.api import bind

pytestmark = pytest.mark.alone
bind()


def array(size=4):
    made = mx.nd.zeros((size,))
    made.wait_to_read()
    return made


@pytest.fixture
def device():
    with Accelerator() as accelerator:
        yield accelerator


def address(made):
    found = ctypes.c_void_p()
    assert mx.base._LIB.MXNDArrayGetData(made.handle, ctypes.byref(found)) == 0
    return found.value


def test_a_chain_takes_the_sum_of_its_times_without_gaps(device):
    state = device.keep(array())
    begin = time.monotonic()
    for tag in range(50):
        device.op([], [state], 0.004, tag=tag)
    state.wait_to_read()
    took = time.monotonic() - begin
    assert took >= 0.2
    spans = device.take_trace()
    assert [span[0] for span in spans] == list(range(50))
    assert spans[-1][2] - spans[0][1] == pytest.approx(0.2, abs=1e-6)
    assert device.take_trace() == []


def test_an_operation_waits_for_what_it_reads(device):
    first, second, third = array(), array(), array()
    begin = time.monotonic()
    device.op([], [first], 0.03, tag=0)
    device.op([first], [second], 0.03, tag=1)
    other = first + 1  # an ordinary operator behind the first operation
    other.wait_to_read()
    assert time.monotonic() - begin >= 0.03
    device.op([third, other], [], 0.01, tag=2)
    mx.nd.waitall()
    (tag, _, end), *others = device.take_trace()
    assert tag == 0 and sorted(span[0] for span in others) == [1, 2]  # in the order in which the engine finds them ready
    assert all(start >= end for _, start, _ in others)


def test_an_operation_whose_input_comes_late_starts_then_and_not_before(device):
    blocker, inner, output = array(), device.keep(array()), array()
    with Accelerator() as other:
        begin = time.monotonic()
        other.op([], [blocker], 0.1)
        device.op([], [inner], 0.01, tag=0)
        device.op([inner, blocker], [output], 0.02, tag=1)
        output.wait_to_read()
        took = time.monotonic() - begin
    (_, _, end), (_, start, late_end) = device.take_trace()
    assert took >= 0.12
    assert start - end > 0.08 and late_end - start == pytest.approx(0.02, abs=1e-6)


def test_gradients_of_a_step_are_ready_together_and_not_early(device):
    gradients = [array() for _ in range(5)]
    begin = time.monotonic()
    device.op([], gradients, 0.05)
    for gradient in gradients:
        gradient.wait_to_read()
        assert time.monotonic() - begin >= 0.05


def test_stamps_are_written_and_checks_count_wrong_values(device):
    gradient, output = array(3000), array()
    marks = [(address(gradient), 3000, 7.0)]
    device.op([], [gradient], 0.001, stamps=marks)
    values = gradient.asnumpy()
    assert list(values[::1024]) == [7, 7, 7] and values.sum() == 21
    device.op([gradient], [output], 0.0, checks=marks)
    output.wait_to_read()
    assert device.wrong == 0
    device.op([gradient], [output], 0.0, checks=[(address(gradient), 2048, 8.0)])
    output.wait_to_read()
    assert device.wrong == 2


def test_bad_operations_are_refused(device):
    made = array()
    with pytest.raises(ValueError):
        device.op([made], [made], 0.1)
    with pytest.raises(ValueError):
        device.op([], [made], -0.1)
    device.close()
    device.close()
    with pytest.raises(RuntimeError, match="closed"):
        device.op([], [made], 0.1)


def test_close_completes_what_was_pushed_and_leaves_no_thread():
    output = array()
    with Accelerator() as warm:  # the engine starts its own thread for the device
        warm.op([], [output], 0)
        output.wait_to_read()
    before = _tasks()
    accelerator = Accelerator()
    (own,) = _tasks() - before
    for _ in range(10):
        accelerator.op([], [output], 0.01)
    begin, progress = time.monotonic(), []
    thread = threading.Thread(target=lambda: progress.append(time.sleep(0.03)))
    thread.start()
    accelerator.close()
    assert time.monotonic() - begin > 0.08 and progress  # and other Python threads ran meanwhile
    thread.join()
    while own in _tasks() and time.monotonic() - begin < 5:  # a thread that was joined may take a moment more to leave
        time.sleep(0.01)
    assert own not in _tasks()


def _tasks():
    return set(os.listdir("/proc/self/task"))
