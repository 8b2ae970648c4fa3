"""All-reduce in one order on all ranks: what it costs, and the order. Pure: the same numbers in, the same plan out, on every rank.

A collective needs all ranks at once, so that they must all start their collectives in one order. A queue by priority on each rank cannot
give one, since ranks become ready at slightly different times. A profile can: every rank computes the same order beforehand from the same
numbers (rank 0's, which go to all), and starts each unit when it is that unit's turn and its gradients are there.

**Cost.** While several collectives are under way, what one needs besides its bytes (messages, threads that wake) passes beside the bytes of
the others. So a collective takes a start-up or its bytes' time, whichever is longer (:class:`CollectiveCost`). Gloo with three at a time,
between two ranks at 1 Gbit/s on two cores: 0.6 to 1.2 ms up to 128 KB, then 120 MB/s.

**Order.** An ideal link that is never idle while a unit is ready always takes the most urgent one that is ready, and does not interrupt it
(:func:`static_order`). The order in which a link *with* interruptions would finish (``bound.finishing_order``) is not such an order: to
start a unit only when its turn to finish comes leaves the link idle in the time in which it would have been interrupted. How good the order
is depends on the rate. In a simulation with rho 1, a rate that was 5% too low or too high cost 4% of the time: with one too low the link
waits for urgent units that are not ready yet, with one too high what is urgent waits behind what is not.
"""

import heapq
import math
from typing import List, NamedTuple, Sequence, Tuple

from ..config import shown
from ..errors import ConfigError
from ..profiling.gradient_profile import GradientProfile
from ..profiling.steps import finite
from .bound import lower_bound
from .partition import MOST


class CollectiveCost(NamedTuple):
    """What an all-reduce of b bytes takes while others are under way: ``startup`` or b / ``rate``, whichever is longer.

    Attributes
    ----------
    startup : seconds from one collective to the next, if they are tiny. While others are under way, it passes beside their bytes.
    rate : bytes/s of payload (a ring of N ranks sends 2 (N - 1) / N times as much over each link).
    """

    startup: float
    rate: float

    def seconds(self, size: int) -> float:
        """Seconds from the end of one collective to the end of the next, of ``size`` bytes."""
        return max(self.startup, size / self.rate)


class Gradient(NamedTuple):
    """One parameter's gradient.

    Attributes
    ----------
    bytes, itemsize : of the whole, and of an element.
    kind : gradients of different kinds (dtype, device) never share a unit.
    rank : 0 is needed first by the next forward.
    ready : seconds from some moment of the iteration, the same for all gradients.
    """

    bytes: int
    itemsize: int
    kind: int
    rank: int
    ready: float


class Piece(NamedTuple):
    """Elements ``start`` to ``stop`` of the flat gradient of this index."""

    gradient: int
    start: int
    stop: int


class CollectiveUnit(NamedTuple):
    """What one collective carries.

    Attributes
    ----------
    rank : of its most urgent gradient.
    ready : when its last gradient is ready (seconds).
    pieces : slices and whole gradients of one kind, neighbours in urgency.
    bytes : of all pieces.
    kind : of its gradients.
    """

    rank: int
    ready: float
    pieces: Tuple[Piece, ...]
    bytes: int
    kind: int


def static_order(units: Sequence[CollectiveUnit], cost: CollectiveCost) -> List[int]:
    """The order (indices) in which all ranks start ``units``: whenever a link of this cost is free, the most urgent that is ready goes.

    Cost O(n log n) for n units.

    >>> late, early, big = (CollectiveUnit(rank, ready, (), size, 0) for rank, ready, size in [(0, 0.2, 8), (1, 0.1, 8), (2, 0.0, 150)])
    >>> static_order([late, early, big], CollectiveCost(0.0, 1000.0))
    [2, 1, 0]
    >>> static_order([late, early, big], CollectiveCost(0.0, 500.0))
    [2, 0, 1]

    Raises ConfigError if an argument is not what is stated.
    """
    check_cost(cost)
    for unit in units:
        need_number("ready", unit.ready, "a finite number of seconds")
    coming = sorted(range(len(units)), key=lambda index: units[index].ready, reverse=True)
    ready: List[Tuple[int, int]] = []
    order: List[int] = []
    clock = -math.inf
    while coming or ready:
        if not ready:
            clock = max(clock, units[coming[-1]].ready)
        while coming and units[coming[-1]].ready <= clock:
            index = coming.pop()
            heapq.heappush(ready, (units[index].rank, index))
        order.append(heapq.heappop(ready)[1])
        clock += cost.seconds(units[order[-1]].bytes)
    return order


def ring_rate(link: float, ranks: int) -> float:
    """Bytes/s of gradients that a ring of ``ranks`` reduces if each rank's link carries ``link`` bytes/s each way: every byte passes each
    link 2 (N - 1) / N times.

    >>> ring_rate(120e6, 2), ring_rate(120e6, 4)
    (120000000.0, 80000000.0)

    Raises ConfigError if an argument is not what is stated.
    """
    need_whole("ranks", ranks, 2)
    if need_number("link", link, "a positive, finite number of bytes/s") <= 0:
        raise ConfigError(f"link={link!r} is not allowed; allowed: a positive, finite number of bytes/s")
    return float(link) * ranks / (2 * (ranks - 1))


def ring_bound(profile: GradientProfile, link: float, ranks: int) -> float:
    """Seconds per iteration that no order of all-reduces in a ring can beat; arguments as of :func:`ring_rate`.

    It is the bound of bound.py for the rate of the ring. Raises ProfileError if the profile lacks compute times.
    """
    return lower_bound(profile, ring_rate(link, ranks))


def check_cost(cost: CollectiveCost) -> None:
    """Raise ConfigError if these are not what is stated."""
    if need_number("startup", cost.startup, "a number of seconds from 0") < 0:
        raise ConfigError(f"startup={cost.startup!r} is not allowed; allowed: a number of seconds from 0")
    if need_number("rate", cost.rate, "a positive, finite number of bytes/s") <= 0:
        raise ConfigError(f"rate={cost.rate!r} is not allowed; allowed: a positive, finite number of bytes/s")


def need_whole(name: str, value: object, least: int) -> None:
    """Raise ConfigError if ``value`` is not a whole number from ``least`` on."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
        raise ConfigError(f"{name}={shown(value):.80} is not allowed; allowed: a whole number from {least} to 2**62")


def need_number(name: str, value: object, allowed: str) -> float:
    """The number; ConfigError, which says what is ``allowed``, if it is none or not finite."""
    number = finite(value)
    if number is None:
        raise ConfigError(f"{name}={shown(value):.80} is not allowed; allowed: {allowed}")
    return number
