"""One worker: trains with gradients that travel in 16 bits, and compares every weight, bit for bit, with what NumPy and MXNet's optimizers
give for the gradients of all workers.

Arguments: the optimizers' names on the servers, separated by commas, one after the other on the same weights; or ``none``. Every other one
does not clip. ``bare`` behind it: the servers have no prophet_mx. ``gpu``: the workers' arrays are on GPUs. The last line of a worker is
``exact``, its number of units, of numbers beyond the limit, and the log's failure.
"""

import os
import sys

if os.environ.get("DMLC_ROLE") == "server" and "bare" in sys.argv:
    sys.modules["prophet_mx"] = None  # as the servers' Python would say if it had none

import mxnet as mx
import numpy as np
from optimizers import optimizer

from prophet_mx import ScheduledKVStore

SHAPES = [(60, 50), (7,), (25, 9), (5, 1), (300,), (3, 5, 4), (2, 3), (40, 40)]
UNUSED = 6  # a parameter that only every other iteration uses
STEPS = 3
DEVICE = mx.gpu if "gpu" in sys.argv else mx.cpu
SCALES = (1.0, 1e5, 1e-6)


def gradient(rank, step, index):
    random = np.random.RandomState(step * 1000 + index * 10 + rank)
    values = random.normal(size=SHAPES[index]) * 10.0 ** random.uniform(-4, 1) * SCALES[step % len(SCALES)]
    values.flat[0] *= 100
    return values.astype(np.float32)


def wide(name):
    made = optimizer(name)
    made.clip_gradient = None
    return made


class Reference:
    """All that is sent, and what comes of it."""

    def __init__(self, weights, workers, sums):
        self.weights = [weight.copy() for weight in weights]  # what all workers have
        self.master = [mx.nd.array(weight) for weight in weights]
        self.sums, self.workers = sums, workers
        self.limit = 65504.0 if not sums else float(np.float16(65504.0 / workers))
        self.lost = [[np.zeros_like(weight) for weight in weights] for _ in range(workers)]

    def step(self, step, index, updater):
        halved = len(SHAPES[index]) > 1
        total = None
        for rank in range(self.workers):
            values = gradient(rank, step, index)
            if halved:
                whole = self.lost[rank][index] + values
                values = whole.clip(-self.limit, self.limit).astype(np.float16).astype(np.float32)
                self.lost[rank][index] = whole - values
            total = values if total is None else total + values
        if self.sums:
            self.weights[index] = total.astype(np.float16).astype(np.float32) if halved else total
            return
        updater(index, mx.nd.array(total), self.master[index])
        master = self.master[index].asnumpy()
        wanted = (master - self.weights[index]).clip(-65504, 65504)
        self.weights[index] = self.weights[index] + wanted.astype(np.float16) if halved else master


def call(store, way, index, values, target):
    """The ways to call a store, which all send the same."""
    if way == "devices":  # whose sum is exact: one of them has zeros
        on = [mx.nd.array(part, ctx=DEVICE(place)) for place, part in enumerate((values, np.zeros_like(values)))]
        outs = [target, mx.nd.zeros(values.shape, ctx=DEVICE(1))]
        store.pushpull(index, on, out=outs, priority=-index)
    elif way == "pushes":
        store.push(index, mx.nd.array(values, ctx=DEVICE()), priority=-index)
        store.pull(index, out=target, priority=-index)
    else:
        store.pushpull(index, mx.nd.array(values, ctx=DEVICE()), out=target, priority=-index)


def main():
    names = [] if sys.argv[1] == "none" else sys.argv[1].split(",")
    store = ScheduledKVStore(mx.kv.create("dist_sync"), compress="fp16")
    first = [np.random.RandomState(7 + i).normal(size=shape).astype(np.float32) for i, shape in enumerate(SHAPES)]
    reference = Reference(first, store.num_workers, not names)
    weights = [mx.nd.array(values, ctx=DEVICE()) for values in first]
    for index, weight in enumerate(weights):
        store.init(index, weight)
    for turn, name in enumerate(names or ["none"]):
        updater = None
        if names:
            make = wide if turn % 2 else optimizer
            store.set_optimizer(make(name))
            updater = mx.optimizer.get_updater(make(name))
            store._barrier()
        for step in range(turn * STEPS, (turn + 1) * STEPS):
            way = ("usual", "devices", "pushes")[step % 3]
            for index in reversed(range(len(SHAPES))):
                if index != UNUSED or step % 2:
                    call(store, way, index, gradient(store.rank, step, index), weights[index])
                    reference.step(step, index, updater)
            pulled = [mx.nd.zeros(shape, ctx=DEVICE()) for shape in SHAPES]
            store.pull(list(range(len(SHAPES))), out=pulled)
            for index, (weight, again) in enumerate(zip(weights, pulled)):
                expected = reference.weights[index]
                assert weight.asnumpy().tobytes() == expected.tobytes(), (name, step, way, index, weight.asnumpy() - expected)
                assert again.asnumpy().tobytes() == expected.tobytes(), (name, step, "pulled", index, again.asnumpy() - expected)
            store._barrier()
    stats = store.stats()
    print("exact", stats["units"], stats["saturated"], repr(stats["failure"]), flush=True)


main()
