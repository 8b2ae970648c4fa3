"""A job of test_copies.py: pushes gradients from an emulated GPU, and says how much memory is in use.

usage: copies.py ITERATIONS
"""

import sys

import mxnet as mx
import psutil

from prophet_mx import ScheduledKVStore

SIZES = (1000, 2000, 3000, 4000, 5000, 6000)  # elements, by key


def main():
    store = ScheduledKVStore(mx.kv.create("dist_sync"), unit=1_000_000, bandwidth=1e9)
    gradients = [mx.nd.ones((size,), ctx=mx.gpu(0)) for size in SIZES]
    weights = [mx.nd.zeros((size,), ctx=mx.gpu(0)) for size in SIZES]
    store.set_optimizer(mx.optimizer.create("sgd", learning_rate=1))
    store.init(list(range(len(SIZES))), weights)
    mx.nd.waitall()
    for iteration in range(1, int(sys.argv[1]) + 1):
        for key in reversed(range(len(SIZES))):
            store.pushpull(key, gradients[key], out=weights[key], priority=-key)
        for weight in weights:
            weight.wait_to_read()
        if iteration % 50 == 0:
            free, total = mx.context.gpu_memory_info(0)
            print("in use", total - free, psutil.Process().memory_info().rss, flush=True)
    assert all((weight.asnumpy() == -iteration * store.num_workers).all() for weight in weights)


if __name__ == "__main__":
    main()
