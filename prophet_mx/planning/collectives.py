"""All-reduce in one order on all ranks: the units, their size, and the order. Pure: the same numbers in, the same plan out, on every rank.

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

**Units.** A large gradient is sliced, so that what is more urgent never waits behind much of it. Small neighbours travel together, also
with a slice, as tiny collectives leave the link idle. But a unit is ready with its last gradient, and the link may be idle until then; so
neighbours are merged only as far as this wait is no longer than one start-up (:func:`partition`).

**Size.** Units should be as small as start-ups allow, which hide behind bytes from u = startup * rate on; a margin of MARGIN keeps them
hidden while processors are busy. But each start-up also takes time of the processor. With D bytes per iteration in units of u bytes, count
for it a share HIDDEN of D / u * startup. On the other hand what was started cannot be overtaken: when the first layer's gradient becomes
ready, which is last, up to AHEAD units are in front of it or are itself, and take AHEAD * u / rate. The sum of the two is least at

    u = sqrt(HIDDEN * D * startup * rate / AHEAD)

which is more than the margin in long iterations (:func:`unit_size`).
"""

import heapq
import math
from typing import Dict, List, NamedTuple, Sequence, Tuple

from ..config import shown
from ..errors import ConfigError
from ..profiling.gradient_profile import GradientProfile
from ..profiling.steps import finite
from .bound import lower_bound
from .partition import MOST, cut

AHEAD = 3  # units that are in front of the most urgent gradient, itself included: two that are on the wire
MARGIN = 2  # start-ups that the bytes of a unit take at the least
HIDDEN = 0.1  # of a start-up's time is what it costs although it is hidden
MIN_UNIT = 16_000  # bytes
MAX_UNIT = 64_000_000  # bytes


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


def unit_size(cost: CollectiveCost, total_bytes: int) -> int:
    """The size of a unit in bytes for an iteration that reduces ``total_bytes``; derived at the top of this file.

    >>> unit_size(CollectiveCost(startup=0.001, rate=120e6), 12_000_000)  # the margin
    240000
    >>> unit_size(CollectiveCost(startup=0.001, rate=120e6), 120_000_000)
    692820

    Raises ConfigError if an argument is not what is stated.
    """
    _check_cost(cost)
    _need_whole("total_bytes", total_bytes, 0)
    best = math.sqrt(HIDDEN * total_bytes * cost.startup * cost.rate / AHEAD)
    return round(min(MAX_UNIT, max(MIN_UNIT, MARGIN * cost.startup * cost.rate, best)))


def partition(gradients: Sequence[Gradient], unit: int, cost: CollectiveCost) -> List[CollectiveUnit]:
    """The units of about ``unit`` bytes that carry ``gradients``, most urgent first. Every element is in exactly one.

    A gradient of over one and a half units is cut into equal slices. Gradients and slices share a unit with their neighbours in urgency, up
    to ``unit`` bytes, or half as much again with one of at most half a unit; but only as far as the link's idle time until the last of them
    is ready is at most ``cost.startup``.

    In the order of the list, the pieces of one kind are whole gradients one after the other. Laid so into one flat array, each gradient and
    each unit is a contiguous range of it.

    >>> one, two = Gradient(8, 4, 0, rank=0, ready=0.2), Gradient(40, 4, 0, rank=1, ready=0.1)
    >>> [unit.pieces for unit in partition([one, two], 20, CollectiveCost(0.0001, 1000))]
    [(Piece(gradient=0, start=0, stop=2),), (Piece(gradient=1, start=0, stop=5),), (Piece(gradient=1, start=5, stop=10),)]

    Raises ConfigError if an argument is not what is stated.
    """
    _check_cost(cost)
    _need_whole("unit", unit, 1)
    for gradient in gradients:
        _check_gradient(gradient)
    kinds: Dict[int, List[int]] = {}
    for index in sorted(range(len(gradients)), key=lambda index: (gradients[index].rank, index)):
        kinds.setdefault(gradients[index].kind, []).append(index)
    units = []
    for indices in kinds.values():
        units += _units(gradients, indices, unit, cost)
    return sorted(units, key=lambda each: (each.rank, each.kind))


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
    _check_cost(cost)
    for unit in units:
        _need_number("ready", unit.ready, "a finite number of seconds")
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
    _need_whole("ranks", ranks, 2)
    if _need_number("link", link, "a positive, finite number of bytes/s") <= 0:
        raise ConfigError(f"link={link!r} is not allowed; allowed: a positive, finite number of bytes/s")
    return float(link) * ranks / (2 * (ranks - 1))


def ring_bound(profile: GradientProfile, link: float, ranks: int) -> float:
    """Seconds per iteration that no order of all-reduces in a ring can beat; arguments as of :func:`ring_rate`.

    It is the bound of bound.py for the rate of the ring. Raises ProfileError if the profile lacks compute times.
    """
    return lower_bound(profile, ring_rate(link, ranks))


def _units(gradients: Sequence[Gradient], indices: Sequence[int], unit: int, cost: CollectiveCost) -> List[CollectiveUnit]:
    """The units of gradients of one kind, which are given most urgent first."""
    found: List[CollectiveUnit] = []
    for index in indices:
        gradient = gradients[index]
        for part in cut(gradient.bytes // gradient.itemsize, gradient.itemsize, unit):
            size = (part.stop - part.start) * gradient.itemsize
            single = CollectiveUnit(gradient.rank, gradient.ready, (Piece(index, *part),), size, gradient.kind)
            if found and _fit(found[-1].bytes, size, unit) and _idle(gradients, found[-1], single, cost) <= cost.startup:
                found[-1] = _joined(found[-1], single)
            else:
                found.append(single)
    return found


def _fit(one: int, other: int, unit: int) -> bool:
    """Whether so many bytes may share a unit; slices of one gradient, which are over half a unit each, do not."""
    return one + other <= unit or (2 * min(one, other) <= unit and 2 * (one + other) <= 3 * unit)


def _joined(one: CollectiveUnit, other: CollectiveUnit) -> CollectiveUnit:
    return CollectiveUnit(one.rank, max(one.ready, other.ready), one.pieces + other.pieces, one.bytes + other.bytes, one.kind)


def _idle(gradients: Sequence[Gradient], one: CollectiveUnit, other: CollectiveUnit, cost: CollectiveCost) -> float:
    """Seconds for which a link may be idle, at the most, because what two units carry waits for the last of it: until that is ready, but no
    longer than the rest would have taken."""
    pieces = [(gradients[piece.gradient], piece) for piece in one.pieces + other.pieces]
    last = max(one.ready, other.ready)
    early = sum((piece.stop - piece.start) * gradient.itemsize for gradient, piece in pieces if gradient.ready < last)
    return min(last - min(gradient.ready for gradient, _ in pieces), early / cost.rate)


def _check_cost(cost: CollectiveCost) -> None:
    if _need_number("startup", cost.startup, "a number of seconds from 0") < 0:
        raise ConfigError(f"startup={cost.startup!r} is not allowed; allowed: a number of seconds from 0")
    if _need_number("rate", cost.rate, "a positive, finite number of bytes/s") <= 0:
        raise ConfigError(f"rate={cost.rate!r} is not allowed; allowed: a positive, finite number of bytes/s")


def _check_gradient(gradient: Gradient) -> None:
    _need_whole("itemsize", gradient.itemsize, 1)
    _need_whole("bytes", gradient.bytes, 0)
    if gradient.bytes % gradient.itemsize:
        raise ConfigError(f"bytes={gradient.bytes} is not allowed; allowed: a multiple of itemsize={gradient.itemsize}")
    _need_number("ready", gradient.ready, "a finite number of seconds")


def _need_whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
        raise ConfigError(f"{name}={shown(value):.80} is not allowed; allowed: a whole number from {least} to 2**62")


def _need_number(name: str, value: object, allowed: str) -> float:
    number = finite(value)
    if number is None:
        raise ConfigError(f"{name}={shown(value):.80} is not allowed; allowed: {allowed}")
    return number
