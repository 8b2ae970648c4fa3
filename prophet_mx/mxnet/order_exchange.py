"""How the workers switch to another total order in the middle of a job, without ever waiting for each other.

The workers agree on the layout before any of them knows when gradients become ready, so the total order begins as the order of init. A
profile gives a better one (planning/orders.py): workers that are not equally fast then send the same things at about the same time, and
what one sends ahead is what the others send next. But two workers with different total orders and lead limits could wait for each other
forever.

One key is the *clock*: every worker pushes it equally often. With its pushes, each worker sends the same messages on a key of prophet_mx,
in rounds:

1. the orders: rank 0's, from its profile, if they are no longer those in use; zeros from the others, so that the sum is rank 0's.
   A worker that has received new ones uses them, without a lead limit.
2. a report, some pushes later, and again: 0 from those who have received this round's orders, 1 from the others. When the sum is 0, all
   workers use the same orders, and the lead limit counts again.

A worker without a lead limit makes no other worker wait (see the proof in _ext/). Workers do not wait for these messages either: they look
for answers when they push the clock. Answers come in the order of the messages, so the orders in use are never older than those reported.

A worker on which a part of this fails still sends every message. Otherwise the others would get no answers. They would keep their orders
and have no lead limit, which does no harm, but MXNet would wait for the answers, at the end of the job at the latest. The failed worker
sends zeros: no orders, and a report that is true, because it no longer holds anything back by any order. So the others continue as before.
"""

from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from .. import _core
from ..planning.orders import Orders, differ, orders
from ..profiling.online import ProfileLearner
from .api import PlainStore
from .keys import Key

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROUND = 50  # pushes of the clock: how soon a changed profile or rate is followed
REPORTS = (2, 4, 8)  # pushes of the clock after that with a round's orders


def encoded_orders(orders: Optional[Orders], units: int) -> "NDArray[np.float32]":
    """The message that carries orders; None stands for no orders. float32 holds every place: a layout has under 2**24 units."""
    message = np.zeros(2 * units + 1, dtype=np.float32)
    if orders is not None:
        message[0] = 1
        message[1 : units + 1], message[units + 1 :] = orders.urgencies, orders.positions
    return message


def decoded_orders(message: "NDArray[np.float32]") -> Optional[Orders]:
    """The orders that :func:`encoded_orders` encoded on rank 0."""
    numbers = message.astype(int).tolist()
    units = len(numbers) // 2
    return Orders(numbers[1 : units + 1], numbers[units + 1 :]) if numbers[0] == 1 else None


class Unread(NamedTuple):
    """A message whose answer was not read yet."""

    arrival: _core.Arrival  # true once the answer is there
    answer: mx.nd.NDArray
    has_orders: bool  # it is a round's first; else a report


class OrderExchange:
    """One worker's part in the exchange.

    Parameters
    ----------
    plain : the wrapped store without scheduling.
    key : of the messages, with 2 * ``units`` + 1 elements of float32.
    first : number of the clock's push with which the first orders are sent, the same on all workers.
    """

    def __init__(self, plain: PlainStore, key: Key, units: int, first: int) -> None:
        self._plain = plain
        self._key = key
        self._units = units
        self._first = first
        self._pushes = self._requests = 0
        self._failed = False
        self._array = mx.nd.zeros((2 * units + 1,))
        self._messages: List[Unread] = []
        self._sent = self._received = 0  # rounds whose orders were sent, and received
        self._unsettled = False  # new orders are in use here, but perhaps not on all workers

    def clock_pushed(self, own: Callable[[], Optional[Orders]], use: Callable[[Orders], None], settled: Callable[[], None]) -> None:
        """The clock was pushed once more. Never blocks. Keeps none of its arguments: they refer to the owner of this object.

        Parameters
        ----------
        own : this worker's orders, None if it has no new ones; called when they are to be sent.
        use : takes the new orders, with no lead limit until ``settled`` is called.

        Raises what failed, the first time that something does: the caller holds nothing back from now on, but continues to call this.
        """
        self._pushes += 1
        within = (self._pushes - self._first) % ROUND if self._pushes >= self._first else -1
        requests = self._requests
        try:
            if not self._failed:
                self._take_part(within, own, use, settled)
        except Exception:
            self._failed = True
            self._messages.clear()
            raise
        finally:
            if within in (0, *REPORTS) and self._requests == requests:
                self._array[:] = 0
                self._request()

    def _take_part(
        self, within: int, own: Callable[[], Optional[Orders]], use: Callable[[Orders], None], settled: Callable[[], None]
    ) -> None:
        """Read the answers that have come, and send what is due at ``within`` pushes from the beginning of a round."""
        while self._messages and self._messages[0].arrival:
            self._read(self._messages.pop(0), use, settled)
        if within == 0:
            self._sent += 1
            self._send(encoded_orders(own(), self._units), True)
        elif within in REPORTS:
            report = encoded_orders(None, self._units)
            report[0] = self._received < self._sent
            self._send(report, False)

    def _send(self, message: "NDArray[np.float32]", has_orders: bool) -> None:
        self._array[:] = mx.nd.array(message)
        self._request()
        answer = self._array.copy()
        self._messages.append(Unread(_core.Arrival(answer.handle.value), answer, has_orders))

    def _request(self) -> None:
        """All through one array, so that the engine sends one message after the other; each answer is copied from it."""
        self._plain.pushpull(self._key, self._array, self._array)
        self._requests += 1

    def _read(self, message: Unread, use: Callable[[Orders], None], settled: Callable[[], None]) -> None:
        answer = message.answer.asnumpy()
        if message.has_orders:
            self._received += 1
            orders = decoded_orders(answer)
            if orders is not None:
                self._unsettled = True
                use(orders)
        elif self._unsettled and answer[0] == 0:
            self._unsettled = False
            settled()


class OrderSource:
    """The orders that rank 0 hands out, from what it has learned of its gradients and of its network. Remembers what it gave last, and how
    much had been sent by then. Called from the store's own thread.

    Attribute ``most``: bytes/s to all servers together while all workers send, as it was measured before the first push; 0 if it was not.
    """

    def __init__(self, driver: "_core.Driver", learner: ProfileLearner) -> None:
        self._driver = driver
        self._learner = learner
        self.most = 0.0
        self._last: Optional[Orders] = None
        self._sent: Tuple[int, float] = 0, 0.0  # bytes, and seconds in which anything was on its way

    def new(self, sizes: Sequence[Tuple[Sequence[int], int]]) -> Optional[Orders]:
        """The orders that the profile gives for units of these gradients and bytes; None if there is no profile yet, or they are about the
        same as the last ones."""
        ready = self._learner.ready_times()
        if not ready:
            return None
        now = orders(sizes, ready, self._learner.steps(), self._rate())
        if self._last is not None and not differ(now, self._last):
            return None
        self._last = now
        return now

    def _rate(self) -> float:
        """Bytes/s to all servers together since the last call, of the time in which anything was on its way; before anything was sent, what
        the connections carry. No more than ``most``: while other workers send nothing, this one is faster than it is when it matters.

        Not the sum of the connections' momentary rates: one that has a shared link to itself for a moment is faster than all are together.
        """
        state = self._driver.snapshot()
        links: List[Dict[str, Any]] = state["links"]
        now = sum(link["drained"] for link in links), state["sending_seconds"]
        size, seconds = now[0] - self._sent[0], now[1] - self._sent[1]
        self._sent = now
        found = size / seconds if size > 0 and seconds > 0 else sum(link["rate"] for link in links)
        return float(min(found, self.most or found))
