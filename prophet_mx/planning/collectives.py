"""All-reduce in one order on all ranks: the units, their size, and the order. Pure: the same numbers in, the same plan out, on every rank.

A collective needs all ranks at once, so that they must all start their collectives in one order. A queue by priority on each rank cannot
give one, since ranks become ready at slightly different times. A profile can: every rank computes the same order beforehand from the same
numbers (rank 0's, which go to all), and starts each unit when it is that unit's turn and its gradients are there.

**Order.** An ideal link that is never idle while a unit is ready always takes the most urgent one that is ready, and does not interrupt it
(:func:`static_order`). The order in which a link *with* interruptions would finish (``bound.finishing_order``) is not such an order: to
start a unit only when its turn to finish comes leaves the link idle in the time in which it would have been interrupted.

**Units.** A large gradient is sliced, so that what is more urgent never waits behind much of it. Small neighbours travel together, as each
collective costs a start-up whatever its size. But a unit is ready with its last gradient, and the link may be idle until then; so
neighbours are merged only as far as this wait is no longer than one start-up (:func:`partition`).

**Size.** A collective of b bytes takes startup + b / rate. With D bytes per iteration in units of u bytes start-ups take up to
D / u * startup. On the other hand what was started cannot be overtaken: when the first layer's gradient becomes ready, which is last, up
to AHEAD units are in front of it or are itself, and take AHEAD * u / rate. The sum of the two is least at

    u = sqrt(D * startup * rate / AHEAD)

as long as start-ups then are a small part of the time (at most 1 / LEAST of it, by a lower limit on u); see :func:`unit_size`.
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
LEAST = 4  # start-ups that the bytes of a unit take at the least
MIN_UNIT = 16_000  # bytes
MAX_UNIT = 64_000_000  # bytes


class CollectiveCost(NamedTuple):
    """What an all-reduce of b bytes takes: ``startup`` + b / ``rate``.

    Attributes
    ----------
    startup : seconds that a collective takes whatever its size, while others are under way.
    rate : bytes/s of payload (a ring of N ranks sends 2 (N - 1) / N times as much over each link).
    """

    startup: float
    rate: float

    def seconds(self, size: int) -> float:
        """Seconds of a collective of ``size`` bytes."""
        return self.startup + size / self.rate


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
    pieces : one slice of one gradient, or one or more whole gradients of one kind.
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

    >>> unit_size(CollectiveCost(startup=0.0003, rate=118e6), 17_700_000)
    457012
    >>> unit_size(CollectiveCost(startup=0.0003, rate=118e6), 1_000_000)  # the lower limit: four start-ups
    141600

    Raises ConfigError if an argument is not what is stated.
    """
    _check_cost(cost)
    _need_whole("total_bytes", total_bytes, 0)
    best = math.sqrt(total_bytes * cost.startup * cost.rate / AHEAD)
    return round(min(MAX_UNIT, max(MIN_UNIT, LEAST * cost.startup * cost.rate, best)))


def partition(gradients: Sequence[Gradient], unit: int, cost: CollectiveCost) -> List[CollectiveUnit]:
    """The units of about ``unit`` bytes that carry ``gradients``, most urgent first. Every element is in exactly one.

    A gradient of over one and a half units is cut into equal slices. Smaller ones share a unit with their neighbours in urgency, up to
    ``unit`` bytes, as far as the link's idle time until the last of them is ready is at most ``cost.startup``.

    In the order of the list, the pieces of one kind are whole gradients one after the other: laid so into one flat array, each gradient and
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
        for group in _groups(gradients, indices, unit, cost):
            units += _units(gradients, group, unit)
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


def _groups(gradients: Sequence[Gradient], indices: Sequence[int], unit: int, cost: CollectiveCost) -> List[List[int]]:
    """Gradients of one kind, most urgent first, divided into those that travel together; those that will be cut are alone."""
    groups: List[List[int]] = []
    for index in indices:
        wider = [gradients[member] for member in groups[-1]] + [gradients[index]] if groups else []
        if wider and sum(member.bytes for member in wider) <= unit and _idle(wider, cost) <= cost.startup:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def _idle(members: Sequence[Gradient], cost: CollectiveCost) -> float:
    """Seconds for which a link may be idle, at the most, because these gradients wait for their last one: until it is ready, but no longer
    than the others would have taken."""
    last = max(member.ready for member in members)
    early = sum(member.bytes for member in members if member.ready < last)
    return min(last - min(member.ready for member in members), early / cost.rate)


def _units(gradients: Sequence[Gradient], group: Sequence[int], unit: int) -> List[CollectiveUnit]:
    """The unit of a group, or the slices of the large gradient that it consists of."""
    first = gradients[group[0]]
    if len(group) == 1:
        sliced = [[Piece(group[0], *part)] for part in cut(first.bytes // first.itemsize, first.itemsize, unit)]
    else:
        sliced = [[Piece(index, 0, gradients[index].bytes // gradients[index].itemsize) for index in group]]
    ready = max(gradients[index].ready for index in group)
    return [
        CollectiveUnit(
            first.rank,
            ready,
            tuple(pieces),
            sum((piece.stop - piece.start) * gradients[piece.gradient].itemsize for piece in pieces),
            first.kind,
        )
        for pieces in sliced
    ]


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
