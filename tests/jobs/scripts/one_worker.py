"""A job of test_settings_on_one_worker.py: workers with different settings push the same keys in opposite orders.

usage: one_worker.py RANK:NAME=VALUE ...

A NAME in capitals is an environment variable of the worker with that rank, any other a keyword of its ScheduledKVStore. Every value that
comes back is checked. Each worker prints its policy, the units that it released, how it counts drain and how many steps it has learned.
"""

import logging
import os
import sys

import mxnet as mx

from prophet_mx import ScheduledKVStore

LAYERS = 6
ELEMENTS = 3000  # 12 kB
ITERATIONS = 24


def main():
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(levelname)s %(message)s")
    plain = mx.kv.create("dist_sync")
    keywords = {}
    for argument in sys.argv[1:]:
        rank, setting = argument.split(":", 1)
        name, value = setting.split("=", 1)
        if int(rank) == plain.rank:
            (os.environ if name.isupper() else keywords)[name] = value
    store = ScheduledKVStore(plain, **keywords)
    print("rank", store.rank, flush=True)
    names = [f"layer{i}" for i in range(LAYERS)]
    outs = [mx.nd.zeros((ELEMENTS,)) for _ in names]
    for name, out in zip(names, outs):
        store.init(name, out)
    for iteration in range(ITERATIONS):
        for i in range(LAYERS) if store.rank else reversed(range(LAYERS)):
            store.pushpull(names[i], mx.nd.full((ELEMENTS,), (store.rank + 1) * (iteration + i)), out=outs[i], priority=-i)
        for i, out in enumerate(outs):
            assert (out == 3 * (iteration + i)).asnumpy().all(), (iteration, i, out[0].asscalar())
    stats = store.stats()
    print("result", stats["policy"], stats.get("units", 0), stats.get("drain", "none"), len(stats.get("steps", ())), flush=True)


if __name__ == "__main__":
    main()
