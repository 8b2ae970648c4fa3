"""One worker: in every iteration other parameters are trained, the same ones on all workers, as when layers are frozen, dropped or routed.

usage: subsets.py KIND VARIANT FOLDER    KIND is 'sums', of whole numbers, each checked at once, or 'momentum', with SGD on the servers;
                                         VARIANT is 'plain' or 'scheduled'

Each worker writes FOLDER/KIND-VARIANT-RANK.json: a digest of what each iteration pulled, the bytes pushed, and the store's statistics.
"""

import hashlib
import json
import os
import random
import sys

import mxnet as mx
import numpy as np

ITERATIONS = 200
SIZES = [3, 40000, 700, 12, 25000, 1, 9000, 60000, 150, 2000, 33000, 64, 5, 17000, 400, 50000]


def gradient(kind, iteration, number, rank):
    rng = np.random.RandomState([iteration, number, rank])
    values = rng.randint(-1000, 1000, SIZES[number]) if kind == "sums" else rng.normal(size=SIZES[number])
    return values.astype("float32")


def exchange(store, how, key, value):
    """Send a gradient, in one of the ways that scripts use; the array that gets the answer."""
    value = mx.nd.array(value)
    if how == "in place":
        store.pushpull(key, value, priority=-key)
        return value
    out = mx.nd.empty(value.shape)
    if how == "pushpull":
        store.pushpull(key, value, out=out, priority=-key)
    else:
        store.push(key, value, priority=-key)
        store.pull(key, out=out, priority=-key)
    return out


def main():
    kind, variant, folder = sys.argv[1:]
    store = mx.kv.create("dist_sync")
    if variant == "scheduled":
        from prophet_mx import ScheduledKVStore

        store = ScheduledKVStore(store)
    if kind == "momentum":
        store.set_optimizer(mx.optimizer.create("sgd", learning_rate=0.1, momentum=0.9, wd=0.01))
    for number, size in enumerate(SIZES):
        store.init(number, mx.nd.ones(size))
    rng = random.Random(7)  # the same choices on all workers
    digests, pushed = [], 0
    for iteration in range(ITERATIONS):
        known = min(len(SIZES), 5 + iteration // 10)  # some come late
        numbers = rng.sample(range(known), rng.choice((1, 2, 3, known)))
        outs = {
            number: exchange(
                store, rng.choice(("pushpull", "in place", "push and pull")), number, gradient(kind, iteration, number, store.rank)
            )
            for number in numbers
        }
        answers = {number: out.asnumpy() for number, out in outs.items()}
        if kind == "sums":
            for number, answer in answers.items():
                expected = sum(gradient(kind, iteration, number, rank) for rank in range(store.num_workers))
                assert np.array_equal(answer, expected), f"iteration {iteration}, key {number}"
        digests.append(hashlib.sha256(b"".join(answer.tobytes() for answer in answers.values())).hexdigest())
        pushed += sum(answer.nbytes for answer in answers.values())
    stats = store.stats() if variant == "scheduled" else {}
    with open(os.path.join(folder, f"{kind}-{variant}-{store.rank}.json"), "w", encoding="ascii") as file:
        json.dump({"digests": digests, "pushed": pushed, "stats": stats}, file)


if __name__ == "__main__":
    main()
