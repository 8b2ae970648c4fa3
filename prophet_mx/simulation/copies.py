"""The copy engines of a worker's device: gradients pass them on their way to the host, and values on their way back.

As in MXNet on a GPU: a device has :data:`THREADS` threads for its copies (``MXNET_GPU_COPY_NTHREADS``). Each takes the waiting copy of the
highest priority and is busy until that is done. The device makes one copy at a time each way, so two copies the same way take both threads,
and one the other way waits meanwhile. Among equals the first goes first here, where MXNet's heap promises nothing.
"""

import heapq
from itertools import count
from typing import Any, Callable, List, NamedTuple, Sequence, Tuple

from .layout import Unit

THREADS = 2
TO_HOST, TO_DEVICE = 0, 1


class Copy(NamedTuple):
    """Some units of one gradient, which are copied at once."""

    gradient: int
    bytes: int
    units: Tuple[int, ...]


def plan_copies(units: Sequence[Unit], chunk: float) -> List[Copy]:
    """The copies of all units, by gradient and place. ``chunk`` is the least bytes of one: neighbouring units are copied together up to
    that. 0: whole gradients."""
    copies: List[Copy] = []
    order = sorted(range(len(units)), key=lambda number: units[number].gradient)
    for number in order:
        unit = units[number]
        last = copies[-1] if copies else None
        if last is not None and last.gradient == unit.gradient and (not chunk or last.bytes < chunk):
            copies[-1] = Copy(unit.gradient, last.bytes + unit.bytes, (*last.units, number))
        else:
            copies.append(Copy(unit.gradient, unit.bytes, (number,)))
    return copies


class CopyEngines:
    """One device's.

    Parameters
    ----------
    rate : bytes/s each way; 0: copies take no time.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._waiting: List[Tuple[int, int, int, float, Callable[..., None], Tuple[Any, ...]]] = []
        self._sequence = count()
        self._idle = THREADS
        self._free = [0.0, 0.0]  # when the last copy each way ends

    def push(self, way: int, size: float, priority: int, call: Callable[..., None], arguments: Tuple[Any, ...]) -> None:
        """A copy is ready to be made; ``call(*arguments, t)`` follows it."""
        heapq.heappush(self._waiting, (-priority, next(self._sequence), way, size, call, arguments))

    def begin(self, t: float) -> List[Tuple[float, Callable[..., None], Tuple[Any, ...]]]:
        """The copies that threads take now: when each ends, and what follows."""
        begun = []
        while self._waiting and self._idle:
            _, _, way, size, call, arguments = heapq.heappop(self._waiting)
            self._idle -= 1
            self._free[way] = max(self._free[way], t) + (size / self._rate if self._rate else 0.0)
            begun.append((self._free[way], call, arguments))
        return begun

    def ended(self) -> None:
        """A thread is free again."""
        self._idle += 1
