"""How messages share links: a fluid model of one direction of a cluster's network.

Between each worker and each server there is one connection, which sends its messages one after the other. The connections that
have something to send share the links max-min fairly: all rates rise together, and a connection's stops rising when its
worker's or its server's link is full. TCP on a switched network comes near to that.

Identical workers (and servers) are one class, of which a single member is simulated; a class's count says how many it stands
for. Sizes are bytes, rates bytes/s, times seconds. A connection is named by a number, its key.
"""

import heapq
import math
from collections import deque
from typing import Deque, Dict, List, Protocol, Sequence, Tuple

# A connection whose rest would take less than this is done: what is left is rounding.
RELATIVE_SLACK = 1e-12


class Message:
    """One request or answer on its way. ``payload``: the scheduler's bytes; ``wire``: those that the links carry."""

    __slots__ = ("unit", "payload", "wire", "started", "finished")

    def __init__(self, unit: int, payload: int, wire: float) -> None:
        self.unit = unit
        self.payload = payload
        self.wire = wire
        self.started = self.finished = 0.0


class EqualShares:
    """Max-min shares where all workers are of one class: every busy connection then has the same rate.

    Parameters
    ----------
    each : what one connection gets at most: its share of the server's link.
    total : the worker's link.
    counts : per key, how many connections it stands for.

    A flow's end is kept as a level of the bytes that each busy connection has carried, so a change costs O(log flows).
    """

    def __init__(self, each: float, total: float, counts: Sequence[int]) -> None:
        self._each, self._total, self._counts = each, total, counts
        self._ends: List[Tuple[float, int]] = []
        self._end: Dict[int, float] = {}
        self._busy = 0
        self._level = self._rate = self._time = 0.0
        self.next = math.inf  # when the next flow ends

    def start(self, key: int, size: float, t: float) -> None:
        """A connection begins to send ``size`` bytes."""
        self._advance(t)
        self._end[key] = self._level + size
        heapq.heappush(self._ends, (self._level + size, key))
        self._busy += self._counts[key]
        self._predict()

    def left(self, key: int, t: float) -> float:
        """Bytes that the flow of a connection has still to send."""
        return self._end[key] - self._level - self._rate * (t - self._time)

    def ended(self, t: float) -> List[int]:
        """The connections whose flows end now, where ``t`` is :attr:`next`."""
        self._advance(t)
        limit = max(self._ends[0][0], self._level + self._rate * RELATIVE_SLACK * max(1.0, t))
        keys = []
        while self._ends and self._ends[0][0] <= limit:
            key = heapq.heappop(self._ends)[1]
            del self._end[key]
            self._busy -= self._counts[key]
            keys.append(key)
        self._predict()
        return keys

    def _advance(self, t: float) -> None:
        self._level = self._level + self._rate * (t - self._time) if self._busy else 0.0
        self._time = t

    def _predict(self) -> None:
        if self._busy:
            self._rate = min(self._each, self._total / self._busy)
            self.next = max(self._time, self._time + (self._ends[0][0] - self._level) / self._rate)
        else:
            self._rate, self.next = 0.0, math.inf


class MaxMinShares:
    """Max-min shares of connections between any classes of workers and servers. A change costs O(flows * busy links).

    Parameters
    ----------
    rate : of every link, worker's or server's.
    workers, servers : how many members each class has; key = worker class * number of server classes + server class.
    """

    def __init__(self, rate: float, workers: Sequence[int], servers: Sequence[int]) -> None:
        self._capacity = rate
        # Links are numbered, workers' first. Of each connection: its two links, and what one flow counts on each, which is the
        # number of members at the other end.
        self._ends = [
            ((worker, servers[server]), (len(workers) + server, workers[worker]))
            for worker in range(len(workers))
            for server in range(len(servers))
        ]
        self._flows: List[Dict[int, None]] = [{} for _ in range(len(workers) + len(servers))]  # per link, in order
        self._left: Dict[int, float] = {}
        self._rate: Dict[int, float] = {}
        self._time = 0.0
        self._stale = False
        self._next = math.inf

    def start(self, key: int, size: float, t: float) -> None:
        """A connection begins to send ``size`` bytes."""
        self._advance(t)
        self._left[key] = size
        self._rate[key] = 0.0
        for link, _ in self._ends[key]:
            self._flows[link][key] = None
        self._stale = True

    def left(self, key: int, t: float) -> float:
        """Bytes that the flow of a connection has still to send."""
        return self._left[key] - self._rate[key] * (t - self._time)

    def ended(self, t: float) -> List[int]:
        """The connections whose flows end now, where ``t`` is :attr:`next`."""
        self._advance(t)
        times = {key: left / self._rate[key] for key, left in self._left.items()}
        limit = max(min(times.values()), RELATIVE_SLACK * max(1.0, t))
        keys = [key for key, seconds in times.items() if seconds <= limit]
        for key in keys:
            del self._left[key], self._rate[key]
            for link, _ in self._ends[key]:
                del self._flows[link][key]
        self._stale = True
        return keys

    @property
    def next(self) -> float:
        """When the next flow ends."""
        if self._stale:
            self._share()
            self._next = min((max(self._time, self._time + left / self._rate[key]) for key, left in self._left.items()), default=math.inf)
            self._stale = False
        return self._next

    def _advance(self, t: float) -> None:
        seconds = t - self._time
        if seconds > 0:
            for key, rate in self._rate.items():
                self._left[key] -= rate * seconds
        self._time = t

    def _share(self) -> None:
        """Fill the links: again and again, the one that is full first fixes the rates of its flows."""
        load = dict.fromkeys((link for link, flows in enumerate(self._flows) if flows), 0)
        for key in self._left:
            (worker, at_worker), (server, at_server) = self._ends[key]
            load[worker] += at_worker
            load[server] += at_server
        room = dict.fromkeys(load, self._capacity)
        rates: Dict[int, float] = {}
        rate = 0.0
        while len(rates) < len(self._left):
            level, full = min([(room[link] / weight, link) for link, weight in load.items()])
            rate = max(rate, level)  # levels rise; less is rounding
            for key in self._flows[full]:
                if key not in rates:
                    rates[key] = rate
                    for link, weight in self._ends[key]:
                        if link != full:
                            room[link] -= rate * weight
                            load[link] -= weight
                            if not load[link]:
                                del load[link]
            del load[full]
        self._rate = rates


class Shares(Protocol):
    """How the links are divided: :class:`EqualShares` or :class:`MaxMinShares`."""

    @property
    def next(self) -> float: ...

    def start(self, key: int, size: float, t: float) -> None: ...

    def left(self, key: int, t: float) -> float: ...

    def ended(self, t: float) -> List[int]: ...


class Network:
    """The connections of one direction, each with its queue of messages.

    ``shares`` divides the links among the connections that have something to send.
    """

    def __init__(self, shares: Shares, connections: int) -> None:
        self.shares = shares
        self._queues: List[Deque[Message]] = [deque() for _ in range(connections)]

    def send(self, key: int, message: Message, t: float) -> None:
        """Put a message at the end of a connection's queue."""
        queue = self._queues[key]
        queue.append(message)
        if len(queue) == 1:
            self._begin(key, message, t)

    def arrived(self, t: float) -> List[Tuple[int, Message]]:
        """The messages whose last byte leaves now, where ``t`` is ``shares.next``; the ones behind them begin."""
        messages = []
        for key in self.shares.ended(t):
            queue = self._queues[key]
            message = queue.popleft()
            message.finished = t
            messages.append((key, message))
            if queue:
                self._begin(key, queue[0], t)
        return messages

    def sending(self, key: int, t: float) -> Tuple[float, float]:
        """(payload bytes of the message on the wire that have left, when it began); (0, inf) if there is none."""
        queue = self._queues[key]
        if not queue:
            return 0.0, math.inf
        message = queue[0]
        return message.payload * (1 - self.shares.left(key, t) / message.wire), message.started

    def _begin(self, key: int, message: Message, t: float) -> None:
        message.started = t
        self.shares.start(key, message.wire, t)


class DrainMeter:
    """What a sender's kernel reports as acknowledged on one connection: bytes that left a round trip ago.

    Within a message the bytes are taken to have left at an even rate.
    """

    def __init__(self, network: Network, key: int, rtt: float) -> None:
        self._network, self._key, self._rtt = network, key, rtt
        self._sent: Deque[Message] = deque()  # left the sender, acknowledged in part or not at all
        self._acknowledged = 0  # payload of the messages before those
        self.released = 0

    def left(self, message: Message) -> None:
        """The last byte of a message has left."""
        self._sent.append(message)

    def drained(self, t: float) -> int:
        """Payload bytes acknowledged in all."""
        cut = t - self._rtt
        while self._sent and self._sent[0].finished <= cut:
            self._acknowledged += self._sent.popleft().payload
        total = float(self._acknowledged)
        for message in self._sent:
            if message.started >= cut:
                return int(total)
            total += message.payload * (cut - message.started) / (message.finished - message.started)
        sent, started = self._network.sending(self._key, t)
        if started < cut:
            total += sent * (cut - started) / (t - started)
        return int(total)
