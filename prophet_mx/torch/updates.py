"""The user's own optimizer, run for the parameters whose sums have arrived, with the hyperparameters of the moment of ``step()``.

The optimizer's ``step`` runs on a *shadow*: an object of its class with the same ``state``, whose groups hold only these parameters.
The optimizer itself is never changed, so that a scheduler may change its groups meanwhile. All updates run in one thread.
"""

import contextlib
import heapq
import threading
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from ..monitoring.rounds import RoundCounters
from ..runtime import start_thread
from .guards import plainly
from .streams import Streams
from .tracked import CLEARED, ZEROED, Tracked
from .waiting import Waiting

# For how much the optimizer runs at once, about: what is more urgent and comes meanwhile waits for the end of it.
BATCH_BYTES = 4_000_000
BATCH_PARAMETERS = 16  # each takes 10 to 25 us, and the interpreter's lock


class Update:
    """What one ``step()`` asks for: the optimizer's groups (all but their parameters) and its attributes, as they were then. ``marks`` is
    that moment in the streams of an accelerator."""

    def __init__(self, optimizer: torch.optim.Optimizer, marks: Optional[List[Any]] = None) -> None:
        self.marks = marks or []
        self._class = type(optimizer)
        self._attributes = {name: value for name, value in vars(optimizer).items() if name not in ("param_groups", "step")}
        self._groups = [_hyperparameters(group) for group in optimizer.param_groups]

    def apply(self, members: Sequence[Tracked]) -> None:
        """Update these parameters by their gradients. Called with the guards off, in the updating thread."""
        params: List[List[torch.nn.Parameter]] = [[] for _ in self._groups]
        for tracked in members:
            tracked.param.grad = tracked.gradient
            params[tracked.group or 0].append(tracked.param)
        shadow = object.__new__(self._class)
        vars(shadow).update(self._attributes)
        shadow.param_groups = [{**group, "params": some} for group, some in zip(self._groups, params) if some]
        step_without_hooks(self._class)(shadow)


def step_without_hooks(kind: type) -> Any:
    """The class's own ``step``. PyTorch wraps it in one that runs the hooks, which run once for each ``step()`` of the user."""
    step: Any = kind.step  # type: ignore[attr-defined]
    while getattr(step, "hooked", False):
        step = step.__wrapped__
    return step


def _hyperparameters(group: Dict[str, Any]) -> Dict[str, Any]:
    found = {
        name: value.detach().clone() if isinstance(value, torch.Tensor) else value for name, value in group.items() if name != "params"
    }
    if found.get("foreach", True) is None and not found.get("fused") and group["params"] and group["params"][0].is_cuda:
        found["foreach"] = True  # PyTorch's own choice, which it does not make for a guarded parameter
    return found


class Updater:
    """The thread that updates parameters as their sums arrive, the most urgent first."""

    def __init__(self, waiting: Waiting, traffic: RoundCounters, streams: Optional[Streams]) -> None:
        self._waiting, self._traffic, self._streams = waiting, traffic, streams
        self._work = threading.Condition(waiting.condition._lock)  # type: ignore[attr-defined]  # the same lock
        self._ripe: List[Tuple[int, int, Tracked]] = []
        self._stopping = False
        self._thread = start_thread("update", self._run)

    def ripe(self, tracked: Tracked) -> None:
        """The update of this parameter is asked for, and its sum is there. The lock is held. Saying so again does no harm."""
        heapq.heappush(self._ripe, (tracked.urgency, tracked.index, tracked))
        self._work.notify()

    def stop(self, patience: float) -> bool:
        """End the thread; False if it has not ended within ``patience`` seconds."""
        with self._waiting.condition:
            self._stopping = True
            self._work.notify()
        self._thread.join(patience)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            with plainly(), contextlib.nullcontext() if self._streams is None else self._streams.aside():
                while True:
                    batch = self._next_batch()
                    if not batch:
                        return
                    self._apply(batch)
        except BaseException as error:
            self._waiting.fail(error)

    def _next_batch(self) -> List[Tracked]:
        """The most urgent of what is ripe, waiting for it; nothing at the end."""
        # Something may be in the heap twice, or be done already.
        with self._waiting.condition:
            batch: List[Tracked] = []
            size = 0
            while not self._stopping and size < BATCH_BYTES and len(batch) < BATCH_PARAMETERS:
                if not self._ripe and batch:
                    break
                if not self._ripe:
                    self._work.wait()
                    continue
                tracked = heapq.heappop(self._ripe)[-1]
                if tracked.pending and not tracked.unlanded and tracked not in batch:
                    batch.append(tracked)
                    size += tracked.bytes
            return batch

    def _apply(self, batch: List[Tracked]) -> None:
        by_update: Dict[Update, List[Tracked]] = {}
        for tracked in batch:
            assert tracked.update is not None
            by_update.setdefault(tracked.update, []).append(tracked)
        for update, members in by_update.items():
            if self._streams is not None:
                self._streams.follow(update.marks)
            update.apply(members)
        if self._streams is not None:
            self._streams.settle()
        recorder = self._traffic.recorder
        if recorder is not None:
            now = time.perf_counter()
            for tracked in batch:
                recorder.updated(tracked.round, tracked.index, now)
        with self._waiting.condition:
            for tracked in batch:
                if tracked.zero == CLEARED:
                    tracked.param.grad = None
                elif tracked.zero == ZEROED and tracked.gradient is not None:
                    tracked.gradient.zero_()
                    if self._streams is not None:
                        self._streams.settle()
                tracked.update = None
                tracked.pending = False
            self._waiting.condition.notify_all()
