"""One direction of a TCP connection over queues that can drop: when it sends, and what a loss costs it.

A message travels as chunks, which keep their order. The bytes in flight are limited by a congestion window. It grows by what is
acknowledged until the first loss, then by :data:`GROWTH` segments a round trip, and only while it is what limits. A loss shrinks it to
:data:`SHRINK` of itself, once per round trip.

A chunk is known to be lost when a later one is acknowledged. It is sent again :data:`REPAIR_SECONDS` later. Until all losses are made good,
no more leaves than arrives, and one segment for each acknowledgement.

If nothing comes back for two round trips and :data:`REPAIR_SECONDS`, the last chunk is sent again, to learn what was lost: a tail loss
probe. If that does not help either, all that is in flight counts as lost after :data:`TIMEOUT`, and the window begins with one segment.

A host that refuses a chunk shrinks the window, too. The connection tries again at its next acknowledgement. If it has nothing in flight, it
tries again after :data:`TIMEOUT`, as Linux does.

Left out: delayed acknowledgements, pacing, the slow start after a rest, connection set-up, and the receiver's buffer. CUBIC grows like this
where round trips take a few milliseconds. Other congestion controls differ.
"""

import math
from collections import deque
from typing import Callable, Deque, Dict, List, Tuple

from .fluid import Message
from .queues import SEGMENT, Queue

FIRST_WINDOW = 10 * SEGMENT
SHRINK = 0.7
GROWTH = 0.53  # segments per round trip; with SHRINK it takes the same share of a link as Reno does (RFC 8312)
REPAIR_SECONDS = 0.004  # fitted to measured jobs: two round trips alone would make losses too cheap
TIMEOUT = 0.2  # seconds: Linux's least retransmission timeout
HOST_SECONDS = 0.001  # a connection keeps what it sends in this time in its host's queue, or two chunks (TCP small queues)
LEAST_TRIP = 1e-5  # seconds


class Path:
    """What the chunks of a connection pass: the sender's host queue and the receiver's port, and the two on the way ``back``. ``chunk``:
    bytes of one; ``rtt``: of the idle path (seconds)."""

    def __init__(self, host: Queue, port: Queue, back: Tuple[Queue, Queue], chunk: int, rtt: float) -> None:
        self.host, self.port, self.back = host, port, back
        self.chunk, self.half = chunk, rtt / 2


class Chunk:
    """``number``: its place in the stream of its connection."""

    __slots__ = ("number", "size", "known")

    def __init__(self, number: int, size: float) -> None:
        self.number, self.size = number, size
        self.known = False  # the sender knows that it has arrived


class Sent:
    """A chunk that was sent, perhaps again, at a time. ``counts``: it is in flight as far as the sender knows."""

    __slots__ = ("chunk", "time", "counts")

    def __init__(self, chunk: Chunk, time: float) -> None:
        self.chunk, self.time, self.counts = chunk, time, True


class Part:
    """A message in the stream: its chunks are those from ``first`` to below ``end``."""

    __slots__ = ("message", "first", "end")

    def __init__(self, message: Message, first: int, end: int) -> None:
        self.message, self.first, self.end = message, first, end


class Connection:
    """One direction of a connection.

    Parameters
    ----------
    path : its queues.
    at : ``at(time, call, *arguments)`` makes ``call(*arguments, time)`` when it is ``time``, which has not passed.
    delivered : called with a message and the time when the last of its bytes has arrived.
    """

    def __init__(self, path: Path, at: Callable[..., None], delivered: Callable[[Message, float], None]) -> None:
        self._path, self._at, self._delivered = path, at, delivered
        self._fresh: Deque[Chunk] = deque()  # not sent yet
        self._again: Deque[Chunk] = deque()  # lost
        self._sent: Deque[Sent] = deque()  # in flight, or lost without the sender's knowledge; in the order of sending
        self._arriving: Deque[Part] = deque()  # not delivered
        self._draining: Deque[Part] = deque()  # not acknowledged whole
        self._end = 0  # of the stream, in chunks
        self._got = 0  # chunks received without a hole
        self._early: Dict[int, None] = {}  # received behind a hole
        self._acknowledged = 0  # chunks without a hole, as the sender knows
        self._drained = 0  # payload of the messages that are acknowledged whole
        self._flight = self._in_host = 0.0
        self.window, self._threshold = float(FIRST_WINDOW), math.inf
        self._limited = -math.inf  # when the window last held something back
        self._trip = max(LEAST_TRIP, 2 * path.half)  # seconds, smoothed
        self._shrunk = -1.0  # when; what was sent before is no reason to shrink again
        self._recovers = 0  # losses are made good while fewer chunks are acknowledged
        self._budget = 0.0  # bytes that may be sent while losses are made good
        self._probed = self._timer = self._retries = False
        self._deadline = 0.0  # when the timer acts
        self.dropped = self.timeouts = 0  # chunks in ports; timeouts, those of refused chunks too

    def send(self, message: Message, t: float) -> None:
        """Put a message at the end of the stream."""
        message.started = t
        left = message.wire
        part = Part(message, self._end, self._end)
        while left > 0 or part.end == part.first:
            self._fresh.append(Chunk(part.end, min(left, self._path.chunk)))
            left -= self._path.chunk
            part.end += 1
        self._end = part.end
        self._arriving.append(part)
        self._draining.append(part)
        self._pump(t)

    def drained(self) -> int:
        """Payload bytes that are acknowledged."""
        if not self._draining:
            return self._drained
        part = self._draining[0]
        return self._drained + part.message.payload * max(0, self._acknowledged - part.first) // (part.end - part.first)

    # -- sending -----------------------------------------------------------------------------------------------------------------

    def _pump(self, t: float) -> None:
        """Give the host what the window and the host allow."""
        path = self._path
        while self._again or self._fresh:
            queue = self._again or self._fresh
            size = queue[0].size
            if self._flight and self._flight + size > self.window:
                self._limited = t
                return
            if self._flight and self._budget <= 0 and self._recovers > self._acknowledged:
                return
            if self._in_host + size > 2 * path.chunk and self._in_host + size > HOST_SECONDS * self.window / self._trip:
                return
            if not path.host.fits(size, t):
                self._refused(t)
                return
            self._transmit(queue.popleft(), t)

    def _transmit(self, chunk: Chunk, t: float) -> None:
        sent = Sent(chunk, t)
        self._sent.append(sent)
        self._flight += chunk.size
        self._budget -= chunk.size
        self._in_host += chunk.size
        self._watch(t)
        self._at(self._path.host.push(chunk.size, t), self._left_host, sent)

    def _left_host(self, sent: Sent, t: float) -> None:
        path, size = self._path, sent.chunk.size
        self._in_host -= size
        if path.port.fits(size, t):
            self._at(path.port.push(size, t) + path.half, self._arrived, sent)
        else:
            self.dropped += 1
        self._pump(t)

    def _refused(self, t: float) -> None:
        """The host has no room."""
        if not self._sent or self._sent[0].time > self._shrunk:
            self._shrink(t)
        if not self._sent and not self._retries:
            self._retries = True
            self._at(t + TIMEOUT, self._retry)

    def _retry(self, t: float) -> None:
        self._retries = False
        self.timeouts += 1
        self._pump(t)

    # -- the receiver ------------------------------------------------------------------------------------------------------------

    def _arrived(self, sent: Sent, t: float) -> None:
        number = sent.chunk.number
        if number == self._got:
            self._got += 1
            while self._early and self._got in self._early:
                del self._early[self._got]
                self._got += 1
            while self._arriving and self._arriving[0].end <= self._got:
                message = self._arriving.popleft().message
                message.finished = t
                self._delivered(message, t)
        elif number > self._got:
            self._early[number] = None
        path = self._path
        back = t + path.back[0].delay(t)
        back += path.back[1].delay(back) + path.half
        self._at(back, self._acknowledge, sent, self._got)

    # -- acknowledgements and losses ---------------------------------------------------------------------------------------------

    def _acknowledge(self, sent: Sent, got: int, t: float) -> None:
        """A chunk is known to have arrived, and ``got`` chunks without a hole."""
        sent.chunk.known = True
        self._probed = False
        if got > self._acknowledged:
            self._acknowledged = got
            while self._draining and self._draining[0].end <= got:
                self._drained += self._draining.popleft().message.payload
        if sent.counts:
            self._trip += (t - sent.time - self._trip) / 8
            lost = self._forget_until(sent)
            if self._recovers > self._acknowledged:
                over = self._flight > self._threshold
                self._budget += SHRINK * sent.chunk.size if over else sent.chunk.size + SEGMENT
            elif self._limited >= sent.time:
                grown = sent.chunk.size
                self.window += grown if self.window < self._threshold else GROWTH * SEGMENT * grown / self.window
            if lost:
                self._noticed(lost, t)
        self._watch(t)
        self._pump(t)

    def _forget_until(self, sent: Sent) -> List[Sent]:
        """Take a chunk, and those sent before it, out of what is in flight; the latter are lost."""
        lost: List[Sent] = []
        while True:
            first = self._sent.popleft()
            first.counts = False
            self._flight -= first.chunk.size
            if first is sent:
                return lost
            if not first.chunk.known:
                lost.append(first)

    def _noticed(self, lost: List[Sent], t: float) -> None:
        """Chunks are known to be lost."""
        if lost[-1].time > self._shrunk:
            self._shrink(t)
        self._at(t + REPAIR_SECONDS, self._repair, [sent.chunk for sent in lost])

    def _repair(self, lost: List[Chunk], t: float) -> None:
        """Send again what was lost."""
        if self._recovers <= self._acknowledged:
            self._budget = float(SEGMENT)
        self._recovers = self._end - len(self._fresh)
        self._again.extend(lost)
        self._pump(t)

    def _shrink(self, t: float) -> None:
        self._shrunk = t
        self.window = self._threshold = max(2.0 * SEGMENT, SHRINK * self.window)

    def _watch(self, t: float) -> None:
        """Something was sent or came back: the timer begins again."""
        self._deadline = t + (TIMEOUT + self._trip if self._probed else 2 * self._trip + REPAIR_SECONDS)
        if not self._timer and self._sent:
            self._timer = True
            self._at(self._deadline, self._timed_out)

    def _timed_out(self, t: float) -> None:
        self._timer = False
        if not self._sent:
            return
        if t < self._deadline:
            self._timer = True
            self._at(self._deadline, self._timed_out)
        elif not self._probed and self._path.host.fits(self._sent[-1].chunk.size, t):
            self._probed = True
            self._transmit(self._sent[-1].chunk, t)
        else:
            self._give_up(t)

    def _give_up(self, t: float) -> None:
        """Begin anew: nothing has come back for too long."""
        self.timeouts += 1
        self._probed = False
        lost = list(self._sent)
        for sent in lost:
            sent.counts = False
        self._sent.clear()
        self._flight = 0.0
        self._shrink(t)
        self.window = float(SEGMENT)
        self._recovers = self._acknowledged
        self._again.extend(dict.fromkeys(sent.chunk for sent in lost if not sent.chunk.known))  # a probed chunk is there twice
        self._pump(t)
