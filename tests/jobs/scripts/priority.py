"""A job of test_priority.py: makes gradients ready from last to first and notes when each value came back.

usage: priority.py ITERATIONS LAYERS ELEMENTS RATE

The kernel paces this process's connections to the servers at RATE bytes/s: a slow link that needs no
privileges. Each worker prints "answers I T0 T1 ...": iteration I, and the seconds from the first push to the answer of each layer.
"""

import os
import socket
import sys
import threading
import time

import mxnet as mx

from prophet_mx import ScheduledKVStore
from prophet_mx.network.drain import server_sockets

SO_MAX_PACING_RATE = 47  # Linux; not in Python's socket module


def slow_down(rate):
    for number in server_sockets():
        with socket.socket(fileno=os.dup(number)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, rate)


def main():
    iterations, layers, elements, rate = map(int, sys.argv[1:])
    store = ScheduledKVStore(mx.kv.create("dist_sync"))
    for key in range(layers):
        store.init(key, mx.nd.zeros((elements,)))
    grads = [mx.nd.ones((elements,)) for _ in range(layers)]
    outs = [mx.nd.zeros((elements,)) for _ in range(layers)]
    slow_down(rate)
    for iteration in range(iterations):
        mx.nd.waitall()
        store._barrier()
        times = [0.0] * layers
        begin = time.monotonic()

        def wait(key):
            outs[key].wait_to_read()
            times[key] = time.monotonic() - begin

        for key in reversed(range(layers)):
            store.pushpull(key, grads[key], out=outs[key], priority=-key)
        waiters = [threading.Thread(target=wait, args=(key,)) for key in range(layers)]
        for waiter in waiters:
            waiter.start()
        for waiter in waiters:
            waiter.join()
        print("answers", iteration, *(f"{seconds:.4f}" for seconds in times), flush=True)


if __name__ == "__main__":
    main()
