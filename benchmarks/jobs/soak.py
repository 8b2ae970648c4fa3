"""The job of benchmarks/soak.py: trains small parameters for as long as it is told to, from where it was interrupted.

usage: soak.py VARIANT FOLDER PACE      until the iteration that FOLDER/stop names; VARIANT is 'plain' or 'scheduled'

The optimizer has no state on the servers, so that the weights and the number of the iteration are all there is to go on from: the result
must be the same, bit for bit, however often the job was killed. Rank 0 keeps both in FOLDER/checkpoint.npz, replaced at once.
"""

import os
import sys
import time
from pathlib import Path

import mxnet as mx
import numpy as np
import psutil
from whole_numbers import SHAPES

CHECKPOINT_EVERY = 100  # iterations
REPORT_EVERY = 50
LOOK_EVERY = 10  # iterations between two looks whether to stop


def store_of(variant):
    store = mx.kv.create("dist_sync")
    if variant == "scheduled":
        from prophet_mx import ScheduledKVStore

        store = ScheduledKVStore(store)
    store.set_optimizer(mx.optimizer.create("sgd", learning_rate=0.05, wd=0.001, rescale_grad=0.5))
    return store


def initial():
    return [np.random.RandomState(index).normal(size=shape).astype("float32") for index, shape in enumerate(SHAPES)]


class Training:
    """The weights, the gradients of this rank, and one iteration."""

    def __init__(self, store, weights):
        self.store = store
        self.weights = [mx.nd.array(weight) for weight in weights]
        noise = np.random.RandomState(100 + store.rank)
        self.noise = [mx.nd.array(noise.normal(size=shape)) for shape in SHAPES]
        store.init([f"w{i}" for i in range(len(SHAPES))], self.weights)

    def iterate(self, number):
        for i in reversed(range(len(SHAPES))):
            gradient = self.weights[i] * 0.1 + self.noise[i] * (number % 17 - 8)
            self.store.pushpull(f"w{i}", gradient, out=self.weights[i], priority=-i)


def train(variant, folder, pace):
    checkpoint, stop = Path(folder, "checkpoint.npz"), Path(folder, "stop")
    begin, weights = 0, initial()
    if checkpoint.exists():
        with np.load(checkpoint) as kept:
            begin, weights = int(kept["iteration"]), [kept[f"w{i}"] for i in range(len(SHAPES))]
    store = store_of(variant)
    training = Training(store, weights)
    me, last, number, mine = psutil.Process(), None, begin, variant == "scheduled"
    while number != last:
        if number % LOOK_EVERY == 0 and stop.exists():
            last = int(stop.read_text())
        if number % CHECKPOINT_EVERY == 0 and number > begin and store.rank == 0:
            keep(checkpoint, number, training.weights)
        if number == last:
            break
        training.iterate(number)
        number += 1
        if pace:
            time.sleep(pace)
        for weight in training.weights:
            weight.wait_to_read()
        if number % REPORT_EVERY == 0 or number == begin + 1:
            messages = store.stats()["units"] if mine else (number - begin) * len(SHAPES)
            size = f"rss {me.memory_info().rss} threads {me.num_threads()} fds {me.num_fds()} messages {messages}"
            print(f"at {number} rank {store.rank} {size}", flush=True)
    if store.rank == 0:
        keep(Path(folder, f"final-{variant}.npz"), number, training.weights)
    print(f"finished at {number}", flush=True)


def keep(path, number, weights):
    temporary = path.with_suffix(".tmp.npz")
    np.savez(temporary, iteration=number, **{f"w{i}": weight.asnumpy() for i, weight in enumerate(weights)})
    os.replace(temporary, path)


if __name__ == "__main__":
    train(sys.argv[1], sys.argv[2], float(sys.argv[3]))
