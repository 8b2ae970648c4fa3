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
