"""A job of test_faults.py: sums of whole numbers, checked in every iteration, until it is told to stop; and what goes wrong in it.

usage: faults.py FAULT [FOLDER]

FAULT 'run': none, until FOLDER/stop exists; all workers wait between two iterations while FOLDER/hold exists. Otherwise a function of this
file, called before each iteration of a worker, with a limit of iterations.
"""

import logging
import os
import resource
import signal
import sys
import threading
import time

import mxnet as mx
import numpy as np

from prophet_mx import ConfigError, KVStoreError, ScheduledKVStore, _core
from prophet_mx.network import drain

SIZES = [3, 40, 1000, int(os.environ.get("LARGEST", "20000")), 7, 5000]
LIMIT = 60  # iterations of a job with a fault of its own
FLAGS = len(SIZES)  # the key that tells all workers to stop, and to wait, after the same iteration


class Sums:
    """Every worker pushes arrays that depend on key, iteration and rank, and gets the sum over all ranks."""

    def __init__(self):
        self.plain = mx.kv.create("dist_sync")
        self.iteration = 0
        self.outs = [mx.nd.zeros((size,)) for size in SIZES] + [mx.nd.zeros((2,))]
        early = len(self.outs) if sys.argv[1] == "internal_errors" else 0  # keys from before the store was wrapped
        for key in range(early):
            self.plain.init(key, self.outs[key])
        self.store = ScheduledKVStore(self.plain, drain="nic" if self.plain.rank == 3 else "auto")
        for key in range(early, len(self.outs)):
            self.store.init(key, self.outs[key])

    def push(self, stop, hold=False, produced=None):
        grads = [mx.nd.array(self.value(key, self.store.rank)) for key in range(len(SIZES))] + [mx.nd.array([stop, hold])]
        if produced is not None:
            grads[3] = produced
        for key in reversed(range(len(grads))):
            self.store.pushpull(key, grads[key], out=self.outs[key], priority=-key)

    def check(self):
        """Wait for the values; whether someone said stop, and whether someone said hold."""
        for key in range(len(SIZES)):
            wanted = sum(self.value(key, rank) for rank in range(self.store.num_workers))
            got = self.outs[key].asnumpy()
            assert (got == wanted).all(), f"iteration {self.iteration}: key {key} is {got[:4]}, not {wanted[:4]}"
        self.iteration += 1
        print("iteration", self.iteration, flush=True)
        return self.outs[FLAGS].asnumpy() > 0

    def value(self, key, rank):
        return (np.arange(SIZES[key]) % 100 + 7 * key + 3 * self.iteration + 1000 * rank).astype(np.float32)


def main():
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    fault = globals().get(sys.argv[1])
    stop_file, hold_file = [os.path.join(sys.argv[2], name) if not fault else "" for name in ("stop", "hold")]
    sums = Sums()
    print("I am rank", sums.store.rank, flush=True)
    if not fault and sums.store.rank == 1:
        held.append(sums.store)  # MXNet frees it when the interpreter ends; that of rank 0 when main() does
    while True:
        produced = fault(sums) if fault else None
        sums.push(os.path.exists(stop_file) or bool(fault) and sums.iteration == LIMIT, os.path.exists(hold_file), produced)
        time.sleep(0.02)
        stop, hold = sums.check()
        if stop:
            break
        if hold:
            print("held", flush=True)
        while hold and os.path.exists(hold_file):
            time.sleep(0.02)
    print("all values were right", sums.store.stats().get("failure") or "without a failure", flush=True)


# -- faults, each called before every iteration ---------------------------------------------------------------------------------


def interrupted(sums):
    """Ctrl-C, as its terminal would send it, to worker 1 alone, at some moment; again, if it came while Python freed an object, where an
    exception is printed and lost."""
    if sums.store.rank == 1 and sums.iteration >= 10 and not (pressing and pressing[-1].is_alive()):
        pressing.append(threading.Timer(0.1 + 0.05 * np.random.rand(), os.kill, (os.getpid(), signal.SIGINT)))
        pressing[-1].start()


pressing = []


def interrupted_while_the_other_is_busy(sums):
    """The same while worker 1's gradients wait for those of worker 0, which does something else for long."""
    if sums.iteration == 10:
        if sums.store.rank == 0:
            time.sleep(60)
        sums.push(False)
        signal.raise_signal(signal.SIGINT)


def producer_raises(sums):
    """MXNet computes this gradient of worker 1 later, and then fails."""
    if sums.store.rank == 1 and sums.iteration == 10:
        return mx.nd.random.normal(0, -1, (SIZES[3],))
    return None


def ends_alone(sums):
    """Worker 1's program ends in the middle, with 0, as if it had less data than the others."""
    if sums.store.rank == 1 and sums.iteration == 10:
        sys.exit(0)


def ends_alone_holding_the_store(sums):
    """The same of a program whose store lives until the interpreter ends."""
    held.append(sums.store)
    ends_alone(sums)


held = []


def internal_errors(sums):
    """A part of ours fails on each of four workers; before that, wrong calls are made, and while it lasts children are forked."""
    rank = sums.store.rank
    if rank == 2:
        no_descriptors(sums)  # the link monitor cannot attach
    if sums.iteration == 5:
        wrong_calls(sums)
    if sums.iteration == 10 and rank == 0:
        sums.store._path._learner.iteration_begins = None
    if sums.iteration == 10 and rank == 1:
        send_a_unit_twice(sums.store._path.driver, 2, sums.iteration)
    if sums.iteration == 10 and rank == 3:
        drain.psutil.net_io_counters = None  # its thread fails
    if sums.iteration in (20, 40):
        load_data(sums)


def send_a_unit_twice(driver, unit, iteration):
    """It becomes ready while it is on its way: two slices of a parameter, in a store of this process alone, that are both this unit."""
    store, arrays = mx.kv.create("local"), [mx.nd.zeros((4,)) for _ in range(2)]
    for key, array in enumerate(arrays):
        store.init(key, array)
    ones, buffer, out = mx.nd.ones((1000, 1000)), mx.nd.zeros((1000, 1000)), mx.nd.zeros((1000, 1000))
    late = mx.nd.dot(ones, ones)  # so that both are on MXNet's engine before the first can go
    parameter = _core.Parameter(
        driver, store.handle.value, buffer.handle.value, [(unit, array.handle.value, key) for key, array in enumerate(arrays)]
    )
    parameter.pushpull(late.handle.value, out.handle.value, iteration, 0)
    mx.nd.waitall()


def no_descriptors(sums):
    """The process may open no more files, from before its first push to its 15th iteration."""
    if sums.iteration == 0:
        no_descriptors.before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, no_descriptors.before[1]))
    if sums.iteration == 12:
        try:
            sums.store.timeline_start("trace.json")
        except ConfigError as error:
            assert "Too many open files" in str(error), error
        else:
            raise AssertionError("a file was opened")
    if sums.iteration == 15:
        resource.setrlimit(resource.RLIMIT_NOFILE, no_descriptors.before)


def load_data(sums):
    """Processes of gluon's data loader, forked while gradients are on their way."""
    data = mx.gluon.data.ArrayDataset(np.arange(64, dtype=np.float32))
    sums.push(False)
    loader = mx.gluon.data.DataLoader(data, batch_size=8, num_workers=2)
    total = sum(float(batch.sum().asscalar()) for batch in loader)
    assert total == 63 * 32, total
    sums.check()


def wrong_calls(sums):
    """Each is an error of ours, and leaves the store as it was."""
    store = sums.store
    for call, word in [
        (lambda: ScheduledKVStore(store), "wrap it once"),
        (lambda: ScheduledKVStore(sums.plain), "already wrapped"),
        (lambda: store.pushpull(2, mx.nd.zeros((3, 3)), out=mx.nd.zeros((3, 3))), "key 2"),
        (lambda: store.pushpull(2, mx.nd.zeros((SIZES[2],), dtype="float64")), "key 2"),
    ]:
        try:
            call()
        except KVStoreError as error:
            assert word in str(error), error
        else:
            raise AssertionError(f"accepted, though it should name {word!r}")
    # Of another kind: making a second dist_sync store in a process was seen to hang.
    second, out = ScheduledKVStore(mx.kv.create("local")), mx.nd.zeros((4,))
    second.init(0, out)
    second.pushpull(0, mx.nd.ones((4,)), out=out)
    assert (out.asnumpy() == 1).all()


if __name__ == "__main__":
    with mx.Context(os.environ.get("DEVICE", "cpu")):  # of all arrays
        main()
