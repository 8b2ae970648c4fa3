"""One class of simulated workers: its state, the times it leaves behind, and the copy engines of its device.

Gradients pass the copy engines on their way to the host, and values on their way back. As in MXNet on a GPU, a device has :data:`THREADS`
threads for its copies (``MXNET_GPU_COPY_NTHREADS``). Each takes the waiting copy of the highest priority and is busy until that is done.
The device makes one copy at a time each way, so two copies the same way take both threads, and one the other way waits meanwhile. Among
equals the first goes first here, where MXNet's heap promises nothing.
"""

import heapq
import math
import random
from itertools import count
from typing import Any, Callable, List, NamedTuple, Sequence, Set, Tuple, Union

from .cluster import Unit
from .fluid import DrainMeter
from .switch import ReceiptMeter

THREADS = 2
TO_HOST, TO_DEVICE = 0, 1


class Copy(NamedTuple):
    """Some units of one gradient, which are copied at once; or its part of a group."""

    gradient: int
    bytes: int
    units: Tuple[int, ...]


def plan_copies(units: Sequence[Unit], chunk: float) -> List[Copy]:
    """The copies of all units, by gradient and place. ``chunk`` is the least bytes of one: neighbouring units are copied together up to
    that. 0: whole gradients."""
    copies: List[Copy] = []
    for gradient, number, size in sorted(
        (gradient, number, size) for number, unit in enumerate(units) for gradient, size in unit.gradients()
    ):
        last = copies[-1] if copies else None
        if last is not None and last.gradient == gradient and (not chunk or last.bytes < chunk):
            copies[-1] = Copy(gradient, last.bytes + size, (*last.units, number))
        else:
            copies.append(Copy(gradient, size, (number,)))
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


class UnitTimes(NamedTuple):
    """When a unit became ready, was released, drained and answered: seconds from the start of backward."""

    ready: float
    released: float
    drained: float
    answered: float


class SimulatedIteration(NamedTuple):
    """One iteration of one worker, in seconds from the start of backward.

    backward: when backward ended. forward: (start, end) of each gradient's forward. units: in the order of the simulated units.
    """

    backward: float
    forward: Tuple[Tuple[float, float], ...]
    units: Tuple[UnitTimes, ...]


class Worker:
    """State of one class of workers."""

    def __init__(self, number: int, members: int, slowness: float, seed: int, scheduler: Any, gradients: int, units: int) -> None:
        self.number = number
        self.count = members
        self.slowness = slowness
        self.random = random.Random(seed * 1000003 + number)
        self.scheduler = scheduler
        self.meters: List[Union[DrainMeter, ReceiptMeter]] = []  # per class of servers
        self.undrained: Set[int] = set()  # classes of servers with bytes in flight
        self.starts: List[float] = []  # of each iteration's backward
        self.factors: List[float] = []  # of each iteration's compute times
        self.backward_end = 0.0
        self.clock = 0.0  # when the device has finished all the work it has been given
        self.layer = 0  # the next layer of forward
        self.forward = [(0.0, 0.0)] * gradients
        self.copies: CopyEngines
        self.to_come: List[int] = []  # copies to the host of this iteration that are missing, per unit
        self.unanswered: List[int] = []  # units of this iteration whose answers are missing, per copy to the device
        self.missing = [0] * gradients  # such copies of this iteration that are missing, per gradient
        self.parts_left = [0] * units
        self.poll_at = math.inf
        self.sender_free = self.receiver_free = 0.0
        self.times = [[0.0] * units for _ in UnitTimes._fields]

    def draw(self, jitter: float) -> float:
        """The factor of the next iteration's compute times: that of the slowest of the workers this one stands for."""
        spread = jitter * (2 * self.random.random() ** (1 / self.count) - 1) if jitter else 0.0
        self.factors.append(self.slowness * (1 + spread))
        return self.factors[-1]

    def last_iteration(self) -> SimulatedIteration:
        """The last iteration."""
        start = self.starts[-2]
        return SimulatedIteration(
            self.backward_end - start,
            tuple((a - start, b - start) for a, b in self.forward),
            tuple(UnitTimes(*(time - start for time in times)) for times in zip(*self.times)),
        )
