"""How workers in the middle of a job come to share another total order, without any of them ever waiting for another.

The layout is agreed on before anybody knows when gradients become ready, so the total order begins as the order of init. A profile
gives a better one (orders.py): workers that are not equally fast then send the same things at about the same time, and what one sends
ahead is what the others send next. But two workers with different total orders and lead limits could wait for each other for ever.

So with the push of one key, the *clock*, which every worker pushes equally often, each sends the same messages on a key of our own:

1. the orders: rank 0's, from its profile; zeros from the others, so that the sum is rank 0's. Who has received them uses them, without a
   lead limit.
2. a report, some pushes later, and again: 0 from those who use the new orders or know that there are none, 1 from the others. When the
   sum is 0, no worker uses the old ones any more, and the lead limit counts again.

A worker without a lead limit makes nobody wait (see scheduler.pyx), and no message is waited for: whether one has come is looked at
when the clock is pushed.
"""
from types import SimpleNamespace
from typing import Callable, List, Optional

import mxnet as mx
import numpy as np
from mxnet.kvstore import KVStore

from . import _core
from .keys import Key
from .orders import Orders, decoded, encoded

REPORTS = (2, 4, 8)         # pushes of the clock after that with the orders


class OrderExchange:
    """One worker's part in it.

    Parameters
    ----------
    store : handle of the wrapped store; it must outlive this.
    key : that the messages go through, of 2 * ``units`` + 1 float32.
    at : number of the clock's push with which the orders are sent, the same on all workers.
    own : this worker's orders, None if it has none; called when they are sent.
    use : takes the new orders, with no lead limit until ``settled`` is called.
    """

    def __init__(self, store: mx.base.KVStoreHandle, key: Key, units: int, at: int, own: Callable[[], Optional[Orders]],
                 use: Callable[[Orders], None], settled: Callable[[], None]) -> None:
        self._store = SimpleNamespace(handle=store)         # what KVStore's methods need of a store; does not own it
        self._key = key
        self._units = units
        self._at = at
        self._own, self._use, self._settled = own, use, settled
        self._pushes = 0
        self._array = mx.nd.zeros((2 * units + 1,))
        self._answers: List[mx.nd.NDArray] = []             # to the messages sent so far, those that were not read yet
        self._arrivals: List[_core.Arrival] = []
        self._informed = False                              # the answer to the first message was read
        self._used = False

    def clock_pushed(self) -> None:
        """The clock was pushed once more. Never blocks."""
        self._pushes += 1
        while self._arrivals and self._arrivals[0]:
            self._arrivals.pop(0)
            self._read(self._answers.pop(0).asnumpy())
        if self._pushes == self._at:
            self._send(encoded(self._own(), self._units))
        elif self._pushes - self._at in REPORTS:
            report = encoded(None, self._units)
            report[0] = not self._informed
            self._send(report)

    def _send(self, message: np.ndarray) -> None:
        """All through one array, so that the engine sends one message after the other; each answer is copied from it."""
        self._array[:] = mx.nd.array(message)
        KVStore.pushpull(self._store, self._key, self._array, self._array)
        answer = self._array.copy()
        self._answers.append(answer)
        self._arrivals.append(_core.Arrival(answer.handle.value))

    def _read(self, message: np.ndarray) -> None:
        if not self._informed:
            self._informed = True
            orders = decoded(message)
            if orders is not None:
                self._used = True
                self._use(orders)
        elif self._used and message[0] == 0:
            self._used = False
            self._settled()
