"""A job of test_exit.py: on each of four workers the garbage collector frees the store, in another thread of prophet_mx.

usage: collected.py FOLDER PORT

gluon's Trainer and Parameter form a cycle, so that the collector frees the store; it runs in whatever thread allocates.
"""

import atexit
import gc
import sys
import threading
import urllib.request

atexit.register(lambda: print("left:", [thread.name for thread in threading.enumerate() if thread.name.startswith("prophet_mx")]))

import mxnet as mx  # noqa: E402  (after the function that is to run last)

from prophet_mx import ScheduledKVStore  # noqa: E402
from prophet_mx.monitoring import metrics, timeline, watchdog  # noqa: E402
from prophet_mx.network import drain  # noqa: E402

garbage, collected = threading.Event(), threading.Event()


class Cycle:
    """Holds the store and itself."""

    def __init__(self, store):
        self.store = store
        self.myself = self


def collecting(function):
    """The function, after the garbage, once there is some, was collected in the thread that calls it."""

    def wrapped(*args, **kwargs):
        if garbage.is_set() and not collected.is_set():
            gc.collect()
            collected.set()
        return function(*args, **kwargs)

    return wrapped


def main():
    gc.disable()
    plain = mx.kv.create("dist_sync")
    place, name, settings = [
        (metrics.Endpoint, "collect", {"metrics_port": int(sys.argv[2])}),
        (timeline.Timeline, "_flush", {"timeline": f"{sys.argv[1]}/trace.json"}),
        (drain.psutil, "net_io_counters", {"drain": "nic"}),
        (watchdog.Watchdog, "_look", {}),
    ][plain.rank]
    setattr(place, name, collecting(getattr(place, name)))
    rank, store = plain.rank, ScheduledKVStore(plain, **settings)
    out = mx.nd.zeros((30000,))
    store.init(0, out)
    for _ in range(3):
        store.pushpull(0, mx.nd.ones((30000,)), out=out)
    assert (out.asnumpy() == 4).all()
    Cycle(store)
    del store
    garbage.set()
    if rank == 0:
        assert b"prophet_mx_iterations" in urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[2]}/metrics", timeout=10).read()
    assert collected.wait(10), "the thread hangs where it collects"


if __name__ == "__main__":
    main()
