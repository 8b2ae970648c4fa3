"""One class of simulated workers: its state, and the times it leaves behind; :mod:`prophet_mx.simulation.event_loop` moves it on."""

import math
import random
from typing import Any, List, NamedTuple, Set, Tuple

from .copies import CopyEngines
from .fluid import DrainMeter


class UnitTimes(NamedTuple):
    """When a unit became ready, was released, drained and answered: seconds from the start of backward."""

    ready: float
    released: float
    drained: float
    answered: float


class Timeline(NamedTuple):
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
        self.meters: List[DrainMeter] = []  # per class of servers
        self.undrained: Set[int] = set()  # classes of servers with bytes in flight
        self.starts: List[float] = []  # of each iteration's backward
        self.factors: List[float] = []  # of each iteration's compute times
        self.backward_end = 0.0
        self.clock = 0.0  # when the device has finished all the work it has been given
        self.layer = 0  # the next layer of forward
        self.forward = [(0.0, 0.0)] * gradients
        self.copies: CopyEngines
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

    def timeline(self) -> Timeline:
        """The last iteration."""
        start = self.starts[-2]
        return Timeline(
            self.backward_end - start,
            tuple((a - start, b - start) for a, b in self.forward),
            tuple(UnitTimes(*(time - start for time in times)) for times in zip(*self.times)),
        )
