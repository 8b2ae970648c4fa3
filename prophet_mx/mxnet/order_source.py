"""The orders that rank 0 hands out, from what it has learned of its gradients and of its network. Called from the store's own thread."""

from typing import Any, Dict, List, Optional, Tuple

from .. import _core
from ..planning.orders import Orders, differ, orders
from ..profiling.online import ProfileLearner
from .fixed_layout import FixedLayout


class OrderSource:
    """Remembers what it gave last, and how much had been sent by then."""

    def __init__(self, driver: "_core.Driver", learner: ProfileLearner, layout: FixedLayout) -> None:
        self._driver = driver
        self._learner = learner
        self._layout = layout
        self._last: Optional[Orders] = None
        self._sent: Tuple[int, float] = 0, 0.0  # bytes, and seconds in which anything was on its way

    def new(self) -> Optional[Orders]:
        """The orders that the profile gives; None if there is no profile yet, or the orders are about the same as the last ones."""
        ready = self._learner.ready_times()
        if not ready:
            return None
        now = orders(self._layout.sizes(), ready, self._learner.steps(), self._rate())
        if self._last is not None and not differ(now, self._last):
            return None
        self._last = now
        return now

    def _rate(self) -> float:
        """Bytes/s to all servers together since the last call, of the time in which anything was on its way; before anything was sent, what
        the connections carry.

        Not the sum of the connections' momentary rates: one that has a shared link to itself for a moment is faster than all are together.
        """
        state = self._driver.snapshot()
        links: List[Dict[str, Any]] = state["links"]
        now = sum(link["drained"] for link in links), state["sending_seconds"]
        size, seconds = now[0] - self._sent[0], now[1] - self._sent[1]
        self._sent = now
        return float(size / seconds if size > 0 and seconds > 0 else sum(link["rate"] for link in links))
