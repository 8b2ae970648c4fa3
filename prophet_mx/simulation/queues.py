"""Queues of hosts and of a switch's ports: first in, first out, with room for so many bytes.

Bytes come in chunks. A queue that has no room for a chunk does not take it. What that costs the connection which has sent it is in
:mod:`prophet_mx.simulation.tcp`, and which queues a connection passes is in :mod:`prophet_mx.simulation.switch`.
"""

import math

SEGMENT = 1448  # bytes of a full TCP segment
PORT_CHUNKS = 8  # that a port holds, unless a chunk would be smaller than a segment or larger than MAX_CHUNK
MAX_CHUNK = 16_384  # bytes: hosts hand over so many at once, or more


def chunk_bytes(port: float) -> int:
    """Bytes that travel together where ports hold ``port`` bytes. Packets would take more time to simulate.

    >>> chunk_bytes(64_000), chunk_bytes(10e6)
    (8000, 16384)
    """
    return int(min(MAX_CHUNK, max(SEGMENT, port / PORT_CHUNKS)))


class Queue:
    """A host's queue or a port's: first in, first out, emptied at a rate.

    Parameters
    ----------
    rate : bytes/s.
    room : bytes that may wait; inf: any number.
    burst : bytes that leave at once after a rest, as from a token bucket; they are no part of ``room``.
    """

    __slots__ = ("_rate", "_burst", "_room", "_free")

    def __init__(self, rate: float, room: float = math.inf, burst: float = 0.0) -> None:
        self._rate, self._burst = rate, burst / rate
        self._room = room / rate + self._burst
        self._free = 0.0  # when all that has come is paid for: seconds, as all fields but the rate

    def fits(self, size: float, t: float) -> bool:
        """Whether there is room for so many bytes. One chunk always fits an empty queue."""
        waiting = self._free - t
        return waiting <= 0 or waiting + size / self._rate <= self._room

    def push(self, size: float, t: float) -> float:
        """Add so many bytes; when the last of them leaves."""
        self._free = free = max(self._free, t) + size / self._rate
        return max(t, free - self._burst)

    def delay(self, t: float) -> float:
        """Seconds that something tiny would wait."""
        return max(0.0, self._free - t - self._burst)
