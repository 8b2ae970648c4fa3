"""A job of tests/test_faults.py: sums of whole numbers, checked in every iteration, until it is told to stop; and what goes wrong in it.

usage: faults.py FAULT [STOP_FILE]

FAULT 'run': none, until STOP_FILE exists; otherwise a function of this file, called before each iteration of a worker, with a limit of
iterations.
"""
import logging
import os
import signal
import sys
import threading
import time

import mxnet as mx
import numpy as np

from prophet_mx import KVStoreError, ScheduledKVStore

SIZES = [3, 40, 1000, 20000, 7, 5000]
LIMIT = 60          # iterations of a job with a fault of its own
FLAG = len(SIZES)   # the key that tells all workers to stop after the same iteration


class Sums:
    """Every worker pushes arrays that depend on key, iteration and rank, and gets the sum over all ranks."""

    def __init__(self):
        self.store = ScheduledKVStore(mx.kv.create("dist_sync"))
        self.iteration = 0
        self.outs = [mx.nd.zeros((size,)) for size in SIZES] + [mx.nd.zeros((1,))]
        for key, out in enumerate(self.outs):
            self.store.init(key, out)

    def push(self, stop, produced=None):
        grads = [mx.nd.array(self.value(key, self.store.rank)) for key in range(len(SIZES))] + [mx.nd.array([float(stop)])]
        if produced is not None:
            grads[3] = produced
        for key in reversed(range(len(grads))):
            self.store.pushpull(key, grads[key], out=self.outs[key], priority=-key)

    def check(self):
        """Wait for the values; whether someone said stop."""
        for key in range(len(SIZES)):
            wanted = sum(self.value(key, rank) for rank in range(self.store.num_workers))
            got = self.outs[key].asnumpy()
            assert (got == wanted).all(), f"iteration {self.iteration}: key {key} is {got[:4]}, not {wanted[:4]}"
        self.iteration += 1
        print("iteration", self.iteration, flush=True)
        return self.outs[FLAG].asscalar() > 0

    def value(self, key, rank):
        return (np.arange(SIZES[key]) % 100 + 7 * key + 3 * self.iteration + 1000 * rank).astype(np.float32)


def main():
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    fault = globals().get(sys.argv[1])
    sums = Sums()
    while True:
        produced = fault(sums) if fault else None
        sums.push(os.path.exists(sys.argv[2]) if not fault else sums.iteration == LIMIT, produced)
        time.sleep(0.02)
        if sums.check():
            break
    print("all values were right", sums.store.stats()["failure"] or "without a failure", flush=True)


# -- faults, each called before every iteration ---------------------------------------------------------------------------------

def interrupted(sums):
    """Ctrl-C, as its terminal would send it, to worker 1 alone, at some moment."""
    if sums.store.rank == 1 and sums.iteration == 10:
        threading.Timer(0.1 + 0.05 * np.random.rand(), os.kill, (os.getpid(), signal.SIGINT)).start()


def producer_raises(sums):
    """MXNet computes this gradient of worker 1 later, and then fails."""
    if sums.store.rank == 1 and sums.iteration == 10:
        return mx.nd.random.normal(0, -1, (SIZES[3],))


def ends_alone(sums):
    """Worker 1's program ends in the middle, with 0, as if it had less data than the others."""
    if sums.store.rank == 1 and sums.iteration == 10:
        sys.exit(0)


def internal_errors(sums):
    """The learner fails on one worker, the compiled scheduler contradicts itself on the other; then children are forked."""
    if sums.iteration == 10 and sums.store.rank == 0:
        def broken(*args):
            raise ZeroDivisionError("made by the test")
        sums.store._learner.iteration_begins = broken
    if sums.iteration == 10 and sums.store.rank == 1:
        mx.nd.waitall()
        sums.store._driver.ready(2, 10, time.monotonic())       # a unit that is on its way, though nobody pushed it
        sums.store._driver.decide(time.monotonic())
    if sums.iteration in (20, 40):
        load_data(sums)


def monitor_errors(sums):
    """The link monitor cannot attach on one worker; on the other its thread fails later."""
    from prophet_mx import link
    if sums.iteration == 0 and sums.store.rank == 0:
        link.server_sockets = None
    if sums.iteration == 10 and sums.store.rank == 1:
        link.psutil.net_io_counters = None


def load_data(sums):
    """Processes of gluon's data loader, forked while gradients are on their way."""
    data = mx.gluon.data.ArrayDataset(np.arange(64, dtype=np.float32))
    sums.push(False)
    loader = mx.gluon.data.DataLoader(data, batch_size=8, num_workers=2)
    total = sum(float(batch.sum().asscalar()) for batch in loader)
    assert total == 63 * 32, total
    sums.check()


def wrong_calls(sums):
    """What is refused leaves the store as it was. Not under any 'with': each must be an error that a caller of MXNet can catch."""
    store = sums.store
    if sums.iteration == 10:
        for call, word in [(lambda: ScheduledKVStore(store), "wrap it once"),
                           (lambda: store.pushpull(2, mx.nd.zeros((3, 3)), out=mx.nd.zeros((3, 3))), "key 2"),
                           (lambda: store.pushpull(2, mx.nd.zeros((SIZES[2],), dtype="float64")), "key 2"),
                           (lambda: store.pull(3, out=mx.nd.zeros((1, 1))), "key 3")]:
            try:
                call()
            except KVStoreError as error:
                assert word in str(error), error
            else:
                raise AssertionError(f"accepted, though it should name {word!r}")
        try:
            second = ScheduledKVStore(mx.kv.create("dist_sync"))
        except mx.base.MXNetError as error:
            print("a second store:", str(error).strip().splitlines()[-1], flush=True)
        else:
            second.init(0, mx.nd.zeros((4,)))
            second.pushpull(0, mx.nd.ones((4,)), out=mx.nd.zeros((4,)))
            print("a second store: works", flush=True)


if __name__ == "__main__":
    main()
