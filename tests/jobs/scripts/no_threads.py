"""A job of test_faults.py, of one worker: the system starts none of some threads, as at the limit of processes.

usage: no_threads.py FOLDER PORT
"""

import gc
import logging
import sys
import threading
from socket import socket

import mxnet as mx
import psutil

from prophet_mx import KVStoreError, ScheduledKVStore
from prophet_mx.mxnet import data_path, lifecycle

refused = set()  # names of threads
start = threading.Thread.start


def started(thread):
    if thread.name in refused:
        raise RuntimeError("can't start new thread")
    start(thread)


class Driver(data_path._core.Driver):
    """With a thread that is not started either."""

    def start(self):
        if "prophet_mx-scheduler" in refused:
            raise OSError("the scheduler's thread could not be started")
        super().start()


def refuses(name, function):
    refused.add(name)
    try:
        function()
    except KVStoreError as error:
        assert f"the thread {name} cannot be started" in str(error) and "limit of processes" in str(error), error
    else:
        raise AssertionError(f"went on without {name}")
    refused.clear()
    gc.collect()


def sums(store, key):
    out = mx.nd.zeros((50,))
    store.init(key, out)
    for number in range(1, 4):
        store.push(key, mx.nd.full((50,), number))
        store.pull(key, out=out)
        assert (out.asnumpy() == number).all(), (key, out)


def no_alarm(*arguments):
    raise OSError("the thread of an alarm could not be started")


def main(folder, port):
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    threading.Thread.start, data_path._core.Driver, lifecycle._core.alarm = started, Driver, no_alarm
    plain = mx.kv.create("dist_sync")
    settings = {"timeline": f"{folder}/trace.json", "metrics_port": port, "drain": "nic"}
    before = threading.enumerate()
    for key, name in enumerate(("metrics", "timeline", "scheduler", "watchdog")):
        refuses("prophet_mx-" + name, lambda: ScheduledKVStore(plain, **settings))
        assert threading.enumerate() == before, threading.enumerate()
        assert not [file for file in psutil.Process().open_files() if "trace" in file.path]
        with socket() as listening:
            listening.bind(("127.0.0.1", port))
        sums(plain, key)
    store = ScheduledKVStore(plain, **settings)
    refused.add("prophet_mx-nic")
    sums(store, 4)
    store.timeline_stop()
    refuses("prophet_mx-timeline", lambda: store.timeline_start(f"{folder}/later.json"))
    sums(store, 5)
    stats = store.stats()
    assert (stats["units"], stats["drain"], stats["failure"]) == (6, "predicted", ""), stats
    print("trained to the end")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
