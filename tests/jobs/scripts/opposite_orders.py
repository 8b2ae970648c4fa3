"""A job of test_deadlock.py: every worker pushes the same keys in an order of its own, and checks every value it gets.

usage: opposite_orders.py ITERATIONS
"""

import random
import sys

import mxnet as mx
import numpy as np

from prophet_mx import ScheduledKVStore

SHAPES = [(1,), (150, 10), (7,), (40, 5), (1250,), (64,)]  # none is cut
KEYS = 18


def order(rank, iteration):
    """Ascending on even workers and descending on odd ones; in every other iteration, shuffled. Some keys stay out now and then."""
    rng = random.Random(iteration)
    keys = list(range(KEYS)) if iteration % 3 else rng.sample(range(KEYS), rng.randint(1, KEYS))
    keys.sort(reverse=rank % 2 == 1)
    if iteration % 2:
        random.Random(1000 * iteration + rank).shuffle(keys)
    return keys


def value(key, iteration, rank):
    """Small whole numbers: any order of additions gives the same sum."""
    return (key + 3 * iteration + 17 * rank) % 101


def main():
    iterations = int(sys.argv[1])
    store = ScheduledKVStore(mx.kv.create("dist_sync"))
    shapes = [SHAPES[key % len(SHAPES)] for key in range(KEYS)]
    for key, shape in enumerate(shapes):
        store.init(key, mx.nd.zeros(shape))
    grads = [mx.nd.zeros(shape) for shape in shapes]
    outs = [mx.nd.zeros(shape) for shape in shapes]
    pushed, got = 0, np.zeros(KEYS)
    for iteration in range(iterations):
        keys = order(store.rank, iteration)
        for key in keys:
            grads[key][:] = value(key, iteration, store.rank)
            if key % 4 == 3:
                store.push(key, grads[key], priority=-key)
                store.pull(key, out=outs[key], priority=-key)
            else:
                store.pushpull(key, grads[key], out=outs[key], priority=-key)
            got[key] = sum(value(key, iteration, rank) for rank in range(store.num_workers))
        pushed += len(keys)
        if iteration % 5 == 4:  # in between, iterations overlap
            for key, out in enumerate(outs):
                values = out.asnumpy()
                assert (values == got[key]).all(), f"iteration {iteration}, key {key}: {values.flat[0]}, not {got[key]}"
    mx.nd.waitall()
    if "alone" in sys.argv:  # no key shares a message
        assert store.stats()["units"] == pushed, (store.stats(), pushed)
    print(f"{pushed} requests answered", flush=True)


if __name__ == "__main__":
    main()
