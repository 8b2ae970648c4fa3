"""What all workers measure together when they agree: the rate of the links, and what a message costs.

All workers measure at the same time, because their gradients will also travel at the same time: they then share the servers' links and
processors as they will in training. The rate is measured by pulls of keys that have been made, which change nothing. What a message costs
is measured by pushes with values in return, of keys that nobody else uses: a pull alone takes a fifth of the time that a gradient's message
takes, which also is added up and, if the servers have an optimizer, handed to that (the testbed, two workers and one server on two cores:
47 us for a pull, 270 for both, 650 with SGD).
"""

import time
from statistics import median
from typing import List

import mxnet as mx

from .keys import Key, KeyBook
from .raw_store import RawStore

RATE_BYTES = 16_000_000  # pulled at most by each worker to measure the rate
RATE_SECONDS = 0.25  # after which no more is asked for
RATE_KEY = 100_000  # bytes of the smallest key that is pulled for it
RATE_FIRST = 1_000_000  # bytes that are asked for at first
PROBE_ELEMENTS = 16  # float32 that one of them carries
ROUNDS = 4  # the first one makes the store's buffers and does not count


def message_seconds(raw: RawStore, keys: List[Key]) -> float:
    """Seconds that a message takes this worker while all workers send as many as they can to all servers. ``keys`` are the probes.

    All workers send the same number of messages, as each is answered only when all have sent it. Blocks until every worker is here.
    """
    sent = [mx.nd.zeros((PROBE_ELEMENTS,)) for _ in keys]
    received = [mx.nd.zeros((PROBE_ELEMENTS,)) for _ in keys]
    rounds: List[float] = []
    raw.barrier()
    for _ in range(ROUNDS):
        started = time.monotonic()
        raw.pushpull(keys, sent, received)
        _wait(received)
        rounds.append(time.monotonic() - started)
    return median(rounds[1:]) / len(keys)


def rate(raw: RawStore, keys: KeyBook, pulls: bool) -> float:
    """This worker's bytes/s from each server while all workers pull at once; 0 if there is too little to pull. Takes up to 0.5 s. Blocks
    until every worker is here.

    That moment's shares of a link are uneven. Rank 0, whose rate decides, therefore also pulls alone: what it gets then, shared evenly by
    machines of equal links, is the least that counts. A worker that does not pull, as it may not have the keys, only waits with the others.
    """
    raw.barrier()
    alone = _rate(raw, keys) if raw.rank == 0 else 0.0
    raw.barrier()
    if not pulls:
        return 0.0
    return max(_rate(raw, keys) / keys.servers, alone / max(keys.servers, raw.num_workers))


def _rate(raw: RawStore, keys: KeyBook) -> float:
    """Bytes/s from all servers together; 0 if there is too little to pull. Several keys at a time, each time about twice as much, so
    that all connections are busy and round trips hardly count; the time with the most bytes is the one that counts."""
    begin = time.monotonic()
    left = sorted((key for key, shape in keys.shapes.items() if shape.bytes >= RATE_KEY), key=lambda key: keys.shapes[key].bytes)
    pulled = most = 0
    found, least = 0.0, RATE_FIRST
    while left and pulled < RATE_BYTES and time.monotonic() - begin < RATE_SECONDS:
        chosen: List[Key] = []
        size = 0
        while left and size < least:
            chosen.append(left.pop())
            size += keys.shapes[chosen[-1]].bytes
        arrays = [mx.nd.empty(keys.shapes[key].shape, dtype=keys.shapes[key].dtype) for key in chosen]
        started = time.monotonic()
        raw.pull(chosen, arrays)
        _wait(arrays)
        if size >= most:
            most, found = size, size / (time.monotonic() - started)
        pulled += size
        least *= 2
    return found if pulled > RATE_FIRST else 0.0


def _wait(arrays: List[mx.nd.NDArray]) -> None:
    for array in arrays:
        array.wait_to_read()
