"""A job of test_disagreement.py: two workers of which one is unlike the other. Each value that comes back is checked.

usage: unlike.py CASE

A worker prints "right" if all values were right, and "refused" with the error if there was one. Then it ends.
"""

import logging
import os
import sys

import mxnet as mx

import prophet_mx
from prophet_mx import ConfigError, KVStoreError, ScheduledKVStore, policies
from prophet_mx.policies import POLICIES

SIZES = [4000, 30, 9000, 2000]
STEPS = 4


def made(store, keys, sizes=SIZES, together=False):
    """Keys are made, and the store as it was given."""
    values = [mx.nd.zeros((size,)) for size in sizes[: len(keys)]]
    if together:
        store.init(keys, values)
    else:
        for key, value in zip(keys, values):
            store.init(key, value)
    return store


def train(store, keys, sizes=None):
    """Each worker in an order of its own."""
    sizes = sizes or dict(zip(keys, SIZES))
    for step in range(STEPS):
        outs = {key: mx.nd.zeros((sizes[key],)) for key in keys}
        for key in reversed(keys) if store.rank else keys:
            store.pushpull(key, mx.nd.full((sizes[key],), (store.rank + 1) * (step + sizes[key])), out=outs[key])
        for key, out in outs.items():
            assert (out == 3 * (step + sizes[key])).asnumpy().all(), (step, key, out)


def int_order(plain, rank):
    """Some of the keys come from before the store was wrapped."""
    keys = [7, 1, 5, 3]
    mine = keys if rank == 0 else [3, 5, 7, 1]
    sizes = dict(zip(keys, SIZES))
    train(made(ScheduledKVStore(plain), mine, [sizes[key] for key in mine]), keys, sizes)


def early_and_late(plain, rank):
    """With the smallest limits, workers that push in opposite orders depend on one total order."""
    early, late = [11, 10, 14, 12], [20, 21, 23]
    sizes = dict.fromkeys([*early, *late], 3000)
    store = ScheduledKVStore(made(plain, early, [3000] * 4), window=1, lead=1)
    train(store, early, sizes)
    for key in late[::-1] if rank else late:
        store.init(key, mx.nd.zeros((3000,)))
    train(store, [*early, *late], sizes)


def text_order(plain, rank):
    train(made(ScheduledKVStore(plain), "abcd" if rank == 0 else "abdc"), "ab")


def text_missing(plain, rank):
    train(made(ScheduledKVStore(plain), "abcd" if rank == 0 else "abc"), "abc")


def text_missing_on_rank_0(plain, rank):
    train(made(ScheduledKVStore(plain), "abc" if rank == 0 else "abcd"), "abc")


def shape(plain, rank):
    """With an optimizer, which would also update what workers tell each other."""
    store = ScheduledKVStore(plain)
    store.set_optimizer(mx.optimizer.create("sgd", learning_rate=0.0))
    train(made(store, [1, 2], [4000, 50] if rank == 0 else [4000, 51], together=True), [1])


def compressed_and_shape(plain, rank):
    store = ScheduledKVStore(plain)
    store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    store = made(store, [1, 2], [4000, 50] if rank == 0 else [4000, 51])
    store.push(1, mx.nd.ones((4000,)))


def bound(plain, rank):
    """MXNet has read the variable before."""
    if rank:
        os.environ["MXNET_KVSTORE_BIGARRAY_BOUND"] = "5000"
    train(made(ScheduledKVStore(plain), [1, 2]), [1, 2])


def wrapped_late(plain, rank):
    """Text keys: rank 1 has not seen them made."""
    store = made(ScheduledKVStore(plain), "abcd") if rank == 0 else ScheduledKVStore(made(plain, "abcd"))
    train(store, "abcd")
    assert store.stats()["units"] > len("abcd") * STEPS, "nothing was sliced"


def wrapped_late_on_rank_0(plain, rank):
    store = made(ScheduledKVStore(plain), [1, 2, 3]) if rank else ScheduledKVStore(made(plain, [1, 2, 3]))
    train(store, [1, 2, 3])


def not_wrapped(plain, rank):
    train(made(ScheduledKVStore(plain) if rank == 0 else plain, [1, 2]), [1, 2])


def version(plain, rank):
    if rank:
        prophet_mx.mxnet.meeting.__version__ = "0.0.9"
    train(made(ScheduledKVStore(plain), [1, 2]), [1, 2])


def compression(plain, rank):
    store = ScheduledKVStore(plain)
    if rank:
        store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    store = made(store, [1, 2])
    store.push(1, mx.nd.ones((SIZES[0],)))


def policy_order(plain, rank):
    """Policies are added in another order."""
    for name in ("one", "two") if rank else ("two", "one"):
        policies.add(POLICIES["fifo" if name == "one" else "priority"]._replace(name=name))
    store = made(ScheduledKVStore(plain, policy="two"), [1, 2])
    train(store, [1, 2])
    assert store.stats()["policy"] == "two"


def policy_unknown(plain, rank):
    if rank == 0:
        policies.add(POLICIES["fifo"]._replace(name="toy"))
    store = ScheduledKVStore(plain, policy="toy" if rank == 0 else "fifo")
    store.set_optimizer(mx.optimizer.create("sgd", learning_rate=0.0))
    train(made(store, "ab"), "ab")


def optimizer(plain, rank):
    """Set at the same time, that of rank 0 counts; keys are unlike only in their order, and all are sliced."""
    store = ScheduledKVStore(plain)
    mine = [1, 2, 3] if rank == 0 else [3, 2, 1]
    sizes = {1: 4000, 2: 50, 3: 9000}
    if rank == 0:
        store.set_optimizer(mx.optimizer.create("sgd", learning_rate=-1.0))
    elif "other" in sys.argv:
        store.set_optimizer(mx.optimizer.create("adam", learning_rate=0.5))
    store._barrier()
    made(store, mine, [sizes[key] for key in mine])
    for step in range(1, STEPS):
        outs = {key: mx.nd.zeros((size,)) for key, size in sizes.items()}
        for key in mine:
            store.pushpull(key, mx.nd.full(outs[key].shape, (store.rank + 1) * key), out=outs[key])
        for key, out in outs.items():
            assert (out == 3 * key * step).asnumpy().all(), (step, key, out)


def main():
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(levelname)s %(message)s")
    plain = mx.kv.create("dist_sync")
    rank = plain.rank  # a store that was wrapped can no longer be asked
    print("rank", rank, flush=True)
    try:
        globals()[sys.argv[1]](plain, rank)
        print("right", flush=True)
    except (KVStoreError, ConfigError) as error:
        print(f"refused by {type(error).__name__}: {error}", flush=True)
        if "alone" in sys.argv:
            raise


if __name__ == "__main__":
    main()
