"""Two threads that reduce units in one order: one starts collectives as units become ready, the other sees them land.

Contract: a unit is made ready only after it has landed from the round before.

The order of collectives, which is the same on all ranks, within each group and, as NCCL needs it, across groups:

1. Gradients have a group of their own. The thread ``reduce`` starts its collectives, in the plan's order, round after round. All ranks
   have one plan, and one round for each backward pass that is reduced. A unit that is late holds up those behind it.
2. The caller's thread uses this group at the beginning, and where ranks agree on another plan. It has waited until nothing is under way
   on this rank (``Exchange.finish``), and no unit is ready before the next backward. If the
   program's group has only some ranks of the job, it uses that one as well, when an optimizer is made.
3. DistributedDataParallel uses its own group only while it is tried (trial.py). Before and afterwards the same holds. Otherwise it leaves
   the gradients to the schedule, and the buffers to 5 if its backend is not gloo.
4. Norms have a group of their own as well, of gloo. The thread ``reduce`` starts its collectives, in the plan's order.
5. What travels beside gradients (buffers, rank 0's decisions, times) has a group of gloo (``strategies.ANY_ORDER``), whatever carries the
   gradients. Only the caller's thread starts it, in the program's order. Gloo's groups need no common order: each has connections and
   threads of its own.
6. No waits form a circle: a caller's thread has contributed all gradients of a backward before it waits for another rank's caller. So
   sums wait for no caller.
7. What else would travel beside gradients is refused (``refusals.check_order``), or is the program's own, which calls ``synchronize()``
   before.

tests/pytorch/test_order.py checks 1 to 5 by a backend that notes what each rank starts.
"""

import contextlib
import threading
import time
from queue import SimpleQueue
from typing import Any, Callable, Optional, Sequence, Tuple

import torch

from ..monitoring.rounds import RoundCounters
from ..runtime import start_thread
from .strategies import OUTSTANDING, Strategy, payload
from .streams import Streams

LEAST_SECONDS = 0.1  # of full use that tell a rate


class Reducer:
    """Reduces ``units`` (flat tensors, in place, as sums), each by its strategy, in ``order``.

    ``traffic`` is told what happens. ``landed(unit)`` is called in the landing thread when a unit is reduced, ``failed(error)`` when one
    cannot be. On an accelerator, ``streams`` order our threads, and ``written(unit)`` returns when the unit can be reduced.
    """

    def __init__(
        self,
        strategies: Sequence[Strategy],
        units: Sequence[torch.Tensor],
        order: Sequence[int],
        traffic: RoundCounters,
        landed: Callable[[int], None],
        failed: Callable[[BaseException], None],
        outstanding: int = OUTSTANDING,
        streams: Optional[Streams] = None,
        written: Callable[[int], None] = lambda unit: None,
    ) -> None:
        self._strategies, self._units, self._order = strategies, units, order
        self._streams, self._written = streams, written
        self._traffic, self._landed, self._failed = traffic, landed, failed
        self._sizes = [payload(strategy, unit) for strategy, unit in zip(strategies, units)]  # bytes on the wire
        self._ready = [threading.Lock() for _ in units]  # free: the unit is ready, or nothing more will be
        self._complete = [False] * len(units)
        self._broken = False  # one of the threads has failed: the other ends as well
        self._stopping = False
        for lock in self._ready:
            lock.acquire()
        self._places: SimpleQueue[None] = SimpleQueue()
        for _ in range(outstanding):
            self._places.put(None)
        self._flight: SimpleQueue[Optional[Tuple[int, Any]]] = SimpleQueue()
        self._busy_seconds, self._busy_bytes = 0.0, 0  # while as many as possible were under way
        self._threads = [start_thread("reduce", self._run, self._start_all), start_thread("land", self._run, self._land)]

    def ready(self, unit: int) -> None:
        """All of this unit's gradients are in it."""
        self._traffic.ready(unit)
        self._complete[unit] = True
        self._release(unit)

    def _release(self, unit: int) -> None:
        with contextlib.suppress(RuntimeError):  # it is free already, as nothing more will be ready
            self._ready[unit].release()

    def observed_rate(self) -> Optional[float]:
        """Bytes/s of payload while as many collectives as possible were under way; None if that was hardly so. It counts anew then."""
        seconds, size = self._busy_seconds, self._busy_bytes
        self._busy_seconds, self._busy_bytes = 0.0, 0
        return size / seconds if seconds > LEAST_SECONDS else None

    def stop(self, patience: float) -> bool:
        """Start what is ready, as other ranks may have started theirs, and end both threads; False if what is under way has not ended
        within ``patience`` seconds."""
        self._stopping = True
        for unit, complete in enumerate(self._complete):
            if not complete:
                self._release(unit)
        until = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self, body: Callable[[], None]) -> None:
        try:
            with contextlib.nullcontext() if self._streams is None else self._streams.aside():
                body()
        except BaseException as error:
            self._failed(error)
            self._broken = True
            self._places.put(None)
            for unit in range(len(self._units)):
                self._release(unit)

    def _start_all(self) -> None:
        try:
            while True:
                for unit in self._order:
                    self._places.get()
                    self._ready[unit].acquire()
                    if self._broken or not self._complete[unit]:
                        return
                    self._complete[unit] = False
                    if self._stopping:
                        self._release(unit)  # here this thread ends when all that was ready is started
                    if self._streams is not None:
                        self._written(unit)
                    self._traffic.started(unit)
                    self._flight.put((unit, self._strategies[unit].start(self._units[unit])))
        finally:
            self._flight.put(None)

    def _land(self) -> None:
        full, last = False, 0.0
        while True:
            item = self._flight.get()
            if item is None:
                return
            unit, work = item
            self._strategies[unit].finish(self._units[unit], work)
            if self._streams is not None:
                self._streams.settle()  # there finish() only makes the stream wait
            was_full, before = full, last
            full, last = self._places.empty(), time.perf_counter()
            self._places.put(None)
            if full and was_full:
                self._busy_seconds += last - before
                self._busy_bytes += self._sizes[unit]
            self._traffic.landed(unit)
            self._landed(unit)
