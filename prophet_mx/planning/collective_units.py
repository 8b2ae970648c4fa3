"""Gradients to the units of all-reduces: what one collective carries. Pure: the same numbers in, the same units out, on every rank.

**Units.** A large gradient is sliced, so that what is more urgent never waits behind much of it. Small neighbours travel together, also
with a slice, as each collective costs the processors a start-up (:func:`partition`).

**Sizes.** Start-ups hide behind bytes from startup * rate on; MARGIN times as much keeps them hidden while processors are busy. The fewer
units there are the better, so that others may be larger wherever it costs nothing. What does a unit cost that an ideal link would send x
seconds before backward ends? What is more urgent and becomes ready meanwhile waits for it, and for what is started besides. With
x * rate / GROWTH bytes it is done after x / GROWTH, long before forward begins and anything is needed. (Parts of it that were ready early
have waited for the last one. The link did something else then, or had time to spare.) After the end of backward nothing more becomes
ready, so that no unit is in the way of another. But forward waits for all of a unit before it can use the first of it. In what is sent x
seconds after the end of backward that are x / GROWTH at the most, a constant share of what forward may have done by then. So units shrink
towards the end of backward, and grow again from there on; AT_MOST start-ups are enough to make what they cost little
(:func:`unit_sizes`).
"""

from typing import Dict, Iterable, Iterator, List, NamedTuple, Sequence

from ..errors import ConfigError
from ..sizes import MAX_COLLECTIVE_UNIT
from .bound import Sending, sendings
from .collectives import CollectiveCost, CollectiveUnit, Gradient, Piece, check_cost, need_number, need_whole

MARGIN = 2  # start-ups that the bytes of a unit take at the least, if there are so many that belong together
AT_MOST = 16  # start-ups that they take at the most
GROWTH = 4  # units take this part of the time that is left until the end of backward, or has passed since
MIN_UNIT = 16_000  # bytes
MAX_UNIT = MAX_COLLECTIVE_UNIT


class UnitSizes(NamedTuple):
    """How large units may be.

    Attributes
    ----------
    least, most : bytes.
    turn : when backward ends and forward begins (seconds, on the clock of the ready times). Units sent about then have ``least`` bytes.
    """

    least: int
    most: int
    turn: float = 0.0

    def during(self, begin: float, end: float, rate: float) -> float:
        """Bytes of a unit of which an ideal link of ``rate`` bytes/s starts to send a first part at ``begin``, and the last at ``end``."""
        return min(self.most, max(self.least, rate * max(begin - self.turn, self.turn - end, 0.0) / GROWTH))


def fixed_sizes(unit: int) -> UnitSizes:
    """All units of about ``unit`` bytes."""
    return UnitSizes(unit, unit)


def unit_sizes(cost: CollectiveCost, gradients: Sequence[Gradient]) -> UnitSizes:
    """The sizes of units for collectives of this cost; derived at the top of this file.

    >>> unit_sizes(CollectiveCost(startup=0.001, rate=120e6), [Gradient(80, 4, 0, rank=0, ready=0.2)])
    UnitSizes(least=240000, most=1920000, turn=0.2)

    Raises ConfigError if an argument is not what is stated.
    """
    check_cost(cost)
    for gradient in gradients:
        _check_gradient(gradient)
    least, most = (round(min(MAX_UNIT, max(MIN_UNIT, startups * cost.startup * cost.rate))) for startups in (MARGIN, AT_MOST))
    return UnitSizes(least, most, max((gradient.ready for gradient in gradients), default=0.0))


def partition(gradients: Sequence[Gradient], sizes: UnitSizes, cost: CollectiveCost) -> List[CollectiveUnit]:
    """The units that carry ``gradients``, most urgent first. Every element is in exactly one.

    How large a unit may be depends on when an ideal link would send it, which sends the most urgent gradient that is ready at any moment.
    A gradient of over one and a half units is cut into slices. Gradients and slices share a unit with their neighbours in urgency, up to
    this size, or half as much again with one of at most half of it.

    In the order of the list, the pieces of one kind are whole gradients one after the other. Laid so into one flat array, each gradient and
    each unit is a contiguous range of it.

    >>> one, two = Gradient(8, 4, 0, rank=0, ready=0.2), Gradient(44, 4, 0, rank=1, ready=0.1)
    >>> [unit.pieces for unit in partition([one, two], fixed_sizes(20), CollectiveCost(0.0001, 1000))]
    [(Piece(gradient=0, start=0, stop=2), Piece(gradient=1, start=0, stop=5)), (Piece(gradient=1, start=5, stop=11),)]

    Raises ConfigError if an argument is not what is stated.
    """
    check_cost(cost)
    need_whole("least", sizes.least, 1)
    need_whole("most", sizes.most, sizes.least)
    need_number("turn", sizes.turn, "a finite number of seconds")
    for gradient in gradients:
        _check_gradient(gradient)
    urgent = sorted(range(len(gradients)), key=lambda index: (gradients[index].rank, index))
    parts: Dict[int, List[_Part]] = {}
    for index, spans in zip(urgent, _ideal([gradients[index] for index in urgent], cost.rate)):
        parts.setdefault(gradients[index].kind, []).extend(_slices(index, gradients[index], spans, sizes, cost.rate))
    units = [unit for some in parts.values() for unit in _merged(some, sizes, cost.rate)]
    return sorted(units, key=lambda each: (each.rank, each.kind))


class _Part(NamedTuple):
    """A unit, or what may become a part of one. An ideal link begins to send its first piece at ``first``, and its last one at ``last``."""

    unit: CollectiveUnit
    first: float
    last: float


def _ideal(gradients: Sequence[Gradient], rate: float) -> List[List[Sending]]:
    """When an ideal link sends each of these gradients, which are given most urgent first."""
    zero = min((gradient.ready for gradient in gradients), default=0.0)
    spans: List[List[Sending]] = [[] for _ in gradients]
    for each in sendings([gradient.ready - zero for gradient in gradients], [gradient.bytes / rate for gradient in gradients]):
        spans[each.gradient].append(Sending(each.gradient, each.start + zero, each.end + zero))
    return spans


def _slices(index: int, gradient: Gradient, spans: Sequence[Sending], sizes: UnitSizes, rate: float) -> Iterator[_Part]:
    """A gradient in slices of the size that units have when an ideal link sends them; it sends the gradient during ``spans``."""
    count, start = gradient.bytes // gradient.itemsize, 0
    while True:
        begin = _moment(spans, start * gradient.itemsize / rate)
        size = sizes.during(begin, begin, rate)
        whole = (count - start) * gradient.itemsize <= 1.5 * size
        stop = count if whole else start + max(1, int(size) // gradient.itemsize)
        unit = CollectiveUnit(
            gradient.rank, gradient.ready, (Piece(index, start, stop),), (stop - start) * gradient.itemsize, gradient.kind
        )
        yield _Part(unit, begin, begin)
        if stop == count:
            return
        start = stop


def _moment(spans: Sequence[Sending], seconds: float) -> float:
    """When an ideal link has worked for so many seconds on what it sends during ``spans``, and goes on."""
    for span in spans:
        if seconds < span.end - span.start:
            return span.start + seconds
        seconds -= span.end - span.start
    return spans[-1].end


def _merged(parts: Iterable[_Part], sizes: UnitSizes, rate: float) -> List[CollectiveUnit]:
    """The units of parts of one kind, which are given most urgent first."""
    found: List[_Part] = []
    for part in parts:
        if found:
            joined = _joined(found[-1], part)
            if _fit(found[-1].unit, part.unit, sizes.during(joined.first, joined.last, rate)):
                found[-1] = joined
                continue
        found.append(part)
    return [part.unit for part in found]


def _fit(one: CollectiveUnit, other: CollectiveUnit, size: float) -> bool:
    """Whether two neighbours may share a unit of about ``size`` bytes; slices of one gradient do not."""
    if one.pieces[-1].gradient == other.pieces[0].gradient:
        return False
    both = one.bytes + other.bytes
    return both <= size or (2 * min(one.bytes, other.bytes) <= size and 2 * both <= 3 * size)


def _joined(one: _Part, other: _Part) -> _Part:
    rank, ready, pieces, size, kind = one.unit
    unit = CollectiveUnit(rank, max(ready, other.unit.ready), pieces + other.unit.pieces, size + other.unit.bytes, kind)
    return _Part(unit, min(one.first, other.first), max(one.last, other.last))


def _check_gradient(gradient: Gradient) -> None:
    need_whole("itemsize", gradient.itemsize, 1)
    need_whole("bytes", gradient.bytes, 0)
    if gradient.bytes % gradient.itemsize:
        raise ConfigError(f"bytes={gradient.bytes} is not allowed; allowed: a multiple of itemsize={gradient.itemsize}")
    need_number("ready", gradient.ready, "a finite number of seconds")
