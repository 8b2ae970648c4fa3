"""The user's own optimizer: its groups and its hooks, and its ``step``, run for the parameters whose sums have arrived, with the
hyperparameters of the moment of the user's ``step()``.

The optimizer's ``step`` runs on a *shadow*: an object of its class with the same ``state``, whose groups hold only these parameters.
The optimizer itself is never changed, so that a scheduler may change its groups meanwhile. All updates run in one thread.
"""

import contextlib
import heapq
import threading
import time
from itertools import chain
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import torch
from torch.optim import optimizer as torch_optimizer

from ..errors import ConfigError
from ..monitoring.rounds import RoundCounters
from ..runtime import start_thread
from . import refusals
from .guards import GuardedParameter, plainly
from .roles import Step
from .streams import Streams
from .tracked import Tracked
from .waiting import Waiting

# About how much one run of the optimizer updates. More urgent gradients that arrive meanwhile wait for its end.
BATCH_BYTES = 4_000_000
BATCH_PARAMETERS = 16  # each takes 10 to 25 us, and the interpreter's lock

# PyTorch's optimizers choose ``foreach`` by the types of parameters, and updates see guarded ones.
_foreach_types = getattr(torch_optimizer, "_foreach_supported_types", None)
if isinstance(_foreach_types, list) and GuardedParameter not in _foreach_types:
    _foreach_types.append(GuardedParameter)


class Groups:
    """Which parameter is in which group of the optimizer.

    Parameters
    ----------
    optimizer : the user's.
    tracked : all parameters whose gradients are reduced.
    others : those of the model's other optimizers.

    Attributes
    ----------
    mine : the parameters that this optimizer has.

    Raises
    ------
    ConfigError
        the optimizer has a parameter whose gradient is not reduced, or that another one has.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, tracked: Sequence[Tracked], others: Iterable["Groups"]) -> None:
        self._optimizer, self._tracked, self._others = optimizer, tracked, others
        self.mine: List[Tracked] = []
        self.find()

    def changed(self) -> bool:
        """Whether the program has changed the groups since :meth:`find`."""
        return self._identities() != self._found

    def find(self) -> None:
        """Look for each parameter. No update is under way: it uses the groups of its own ``step()``."""
        refusals.check_groups(self._optimizer)
        tracked = {id(each.param): each for each in self._tracked}
        taken = {each.index for other in self._others if other is not self for each in other.mine}
        places: Dict[int, int] = {}
        for index, group in enumerate(self._optimizer.param_groups):
            for param in group["params"]:
                if id(param) in tracked:
                    each = tracked[id(param)]
                    if each.index in taken:
                        raise ConfigError(
                            f"parameter {each.name!r} is already scheduled, in another optimizer; allowed: each parameter in one "
                            "optimizer, until close()"
                        )
                    places[each.index] = index
                elif param.requires_grad:
                    raise ConfigError(
                        f"a parameter of shape {tuple(param.shape)} requires a gradient that is not reduced; allowed: parameters that "
                        "required one when the ScheduledOptimizer was created (close() it and create a new one)"
                    )
        for each in self.mine:
            each.group = None
        self.mine = [each for each in self._tracked if each.index in places]
        for each in self.mine:
            each.group = places[each.index]
        self._found = self._identities()

    def _identities(self) -> List[List[int]]:
        return [[id(param) for param in group["params"]] for group in self._optimizer.param_groups]


@contextlib.contextmanager
def step_hooks(optimizer: Any, shown: torch.optim.Optimizer) -> Iterator[None]:
    """The hooks of an optimizer's ``step``, which run once for each ``step()`` of the user; they get ``shown``."""
    for hook in list(chain(torch_optimizer._global_optimizer_pre_hooks.values(), optimizer._optimizer_step_pre_hooks.values())):
        if hook(shown, (), {}) is not None:
            raise ConfigError("a step pre-hook that changes the arguments of step() is not allowed")
    yield
    for hook in list(chain(optimizer._optimizer_step_post_hooks.values(), torch_optimizer._global_optimizer_post_hooks.values())):
        hook(shown, (), {})


class Update:
    """One ``step()``: the optimizer's groups (without their parameters) and its attributes, as they were then. ``marks`` is that moment in
    the streams of an accelerator."""

    def __init__(self, optimizer: torch.optim.Optimizer, marks: Optional[List[Any]] = None) -> None:
        self.marks = marks or []
        self._class = type(optimizer)
        self._attributes = {name: value for name, value in vars(optimizer).items() if name not in ("param_groups", "step")}
        self._groups = [{name: _copied(value) for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
        self._autocast = _autocast_for(next((group["params"][0] for group in optimizer.param_groups if group["params"]), None))

    def apply(self, members: Sequence[Tracked]) -> None:
        """Update these parameters by their gradients. Called with the guards off, in the updating thread."""
        params: List[List[torch.nn.Parameter]] = [[] for _ in self._groups]
        for tracked in members:
            tracked.multiply()
            tracked.param.grad = tracked.gradient
            params[tracked.group or 0].append(tracked.param)
        shadow = object.__new__(self._class)
        vars(shadow).update(self._attributes)
        shadow.param_groups = [{**group, "params": some} for group, some in zip(self._groups, params) if some]
        with contextlib.ExitStack() as stack:
            if self._autocast is not None:
                stack.enter_context(torch.autocast(*self._autocast))
            refusals.step_without_hooks(self._class)(shadow)


def _copied(value: Any) -> Any:
    """A hyperparameter, which may be changed in place later."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return type(value)(map(_copied, value)) if type(value) in (list, tuple) else value


def _autocast_for(param: Optional[torch.Tensor]) -> Optional[Tuple[str, torch.dtype]]:
    """What autocast is on in this thread for the kind of device of this parameter; each thread has its own."""
    if param is None:
        return None
    kind = param.device.type
    try:
        return (kind, torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else None
    except RuntimeError:  # a kind that has none
        return None
    except (AttributeError, TypeError):  # before PyTorch 2.4
        if kind == "cpu":
            return (kind, torch.get_autocast_cpu_dtype()) if torch.is_autocast_cpu_enabled() else None
        return (kind, torch.get_autocast_gpu_dtype()) if torch.is_autocast_enabled() else None


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
        """The most urgent parameters that are ripe, waiting for some; none at the end."""
        # A parameter may be in the heap twice, or be done already.
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
                if tracked.update is not None and not tracked.unlanded and tracked not in batch:
                    batch.append(tracked)
                    size += tracked.bytes
            return batch

    def _apply(self, batch: List[Tracked]) -> None:
        by_update: Dict[Step, List[Tracked]] = {}
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
                tracked.updated(self._streams)
            self._waiting.condition.notify_all()
