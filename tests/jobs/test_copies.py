"""Copies between a device and the host: on emulated copy engines, as no GPU is at hand."""

import pytest

from support.cluster import run_cluster
from support.paths import ROOT

pytestmark = pytest.mark.alone

# 20 MB in slices of 1 MB, at 100 MB/s each way: one way after the other takes 400 ms.
OVERLAP = """
import sys, time
import mxnet as mx
from prophet_mx import ScheduledKVStore, _core
sys.path.append(sys.argv[1])
from benchmarks.testbed.copies import CopyEngines

store = ScheduledKVStore(mx.kv.create("dist_sync"), unit=1_000_000, bandwidth=1e9)
large, small = (5_000_000,), (1000,)
gradients = [mx.nd.zeros(shape) for shape in (large, small)]
weights = [mx.nd.zeros(shape) for shape in (large, small)]
store.set_optimizer(mx.optimizer.create("sgd", learning_rate=1))
store.init([0, 1], weights)
mx.nd.waitall()
_core.cpu_arrays_are_plain(True)
with CopyEngines(100e6, gradients + weights) as device:
    for iteration in range(6):
        plain = iteration not in (2, 3)  # in between, as if the arrays might be laid out in another way
        _core.cpu_arrays_are_plain(plain)
        for gradient in gradients:
            gradient[:] = iteration
            gradient.wait_to_read()
        begin = time.monotonic()
        for key in (1, 0):
            store.pushpull(key, gradients[key], out=weights[key], priority=-key)
        for weight in weights:
            weight.wait_to_read()
        print("took" if plain else "whole", time.monotonic() - begin, flush=True)
        assert all((weight == -(iteration * (iteration + 1) // 2)).asnumpy().all() for weight in weights)
    both = 6 * 4 * (large[0] + small[0])
    assert device.copied == (both, both), device.copied
"""


def test_slices_are_copied_to_the_host_while_others_are_copied_back():
    result = run_cluster(OVERLAP, 1, 1, args=[ROOT], timeout=60)
    took = [float(line.split()[1]) for line in result.workers[0].output.splitlines() if line.startswith("took")]
    assert len(took) == 4 and 0.2 <= min(took) < 0.35, result.logs()


# A copy to an array that is busy waits, on MXNet's engine, while the next gradient is here.
BUSY = """
import mxnet as mx
from prophet_mx import ScheduledKVStore, _core

store, size = ScheduledKVStore(mx.kv.create("dist_sync"), unit=1_000_000, bandwidth=1e9), 1_000_000
out = mx.nd.zeros((size,))
store.init(0, out)
_core.cpu_arrays_are_plain(True)
store.pushpull(0, mx.nd.full((size,), 7), out=out)
square = mx.nd.ones((1500, 1500), ctx=mx.cpu(1))  # has a thread of its own
mx.nd.waitall()

def keep_busy(array):
    product = mx.nd.dot(square, square)
    mx.nd.broadcast_mul(mx.nd.ones((size,), ctx=mx.cpu(1)), product[0, :1]).copyto(array)

for plain in (False, True):     # a copy of the whole, and then in pieces; the gradient's is the other
    value = out.asnumpy()[0]
    keep_busy(out)
    _core.cpu_arrays_are_plain(plain)
    store.pull(0, out=out)
    _core.cpu_arrays_are_plain(not plain)
    store.push(0, mx.nd.full((size,), 8 + plain))
    got = out.asnumpy()
    assert (got == value).all(), (plain, value, got.min(), got.max())
    store.pull(0, out=out)
    mx.nd.waitall()
    assert (out.asnumpy() == 8 + plain).all()
print("right", flush=True)
"""


def test_the_next_gradient_waits_until_the_value_before_is_copied_out_however_each_is_copied():
    """As with gradients on a GPU, and values for arrays on the CPU."""
    result = run_cluster(BUSY, 1, 1, timeout=40)
    assert "right" in result.workers[0].output, result.logs()
