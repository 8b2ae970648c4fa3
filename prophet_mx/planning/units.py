"""Gradients to units: what one message, or one collective, carries. Pure: the same numbers in, the same units out, on every worker.

A large gradient is *cut* into slices, so that what is more urgent never waits behind much of it: :func:`cut`, for messages to servers, into
equal ones; :func:`partition`, for collectives, into those that suit the moment at which each travels.

Small neighbours are *merged*: :func:`groups` for messages to servers, :func:`together` for copies, and :func:`merge` for collectives, as
each message, copy or collective costs the processors a start-up.

How large units are is the matter of unit_sizes.py.
"""

from typing import Callable, Dict, Hashable, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ..sizes import GROUP_MEMBERS, GROUP_SHARE, MIN_UNIT, is_small, parts_of
from .bound import Sending, sendings
from .unit_sizes import UnitSizes

MOST = 2**62
MAX_PARTS = 1 << 20  # slices of one gradient, at most
GROUP_START = 0.25  # of that share: the most urgent group; and of the bytes that are more urgent, by which the others may have more
LEAST_ELEMENT = 2  # bytes: of half precision
LITTLE = 1 / 8  # of the smallest unit: a collective of fewer bytes takes a start-up in which the link could carry four times as many


class Slice(NamedTuple):
    """Elements ``start`` to ``stop`` of the flat gradient of this index, which is 0 where it is alone; also of a whole one."""

    gradient: int
    start: int
    stop: int


class Member(NamedTuple):
    """A gradient that is to travel in units.

    Attributes
    ----------
    bytes, itemsize : of the whole, and of an element.
    kind : gradients of different kinds (dtype, device) never share a unit.
    urgency : 0 is needed first by the next forward.
    ready : seconds from some moment of the iteration, the same for all gradients.
    """

    bytes: int
    itemsize: int
    kind: int
    urgency: int
    ready: float


class MergedUnit(NamedTuple):
    """Slices that travel together.

    Attributes
    ----------
    urgency : of its most urgent gradient.
    ready : when its last gradient is ready (seconds).
    slices : of gradients of one kind, neighbours in urgency.
    bytes : of all slices.
    kind : of its gradients.
    """

    urgency: int
    ready: float
    slices: Tuple[Slice, ...]
    bytes: int
    kind: int


# -- messages to servers ---------------------------------------------------------------------------------------------------


def cut(elements: int, element_bytes: int, unit: int, most: int = MOST) -> List[Slice]:
    """The slices of one gradient of ``elements`` elements for units of about ``unit`` bytes (0: whole), equal to within one element.

    A gradient of up to one and a half units stays whole (:func:`~prophet_mx.sizes.parts_of`). But no slice has more than
    ``most`` elements, if so many make a unit at all: MXNet spreads an array from ``MXNET_KVSTORE_BIGARRAY_BOUND`` elements on over all
    servers, and a unit of half-precision numbers has twice as many as one of others.

    >>> [(part.start, part.stop) for part in cut(10, 4, 16)]
    [(0, 3), (3, 6), (6, 10)]
    >>> cut(1500000, 2, 4000000, most=999999)
    [Slice(gradient=0, start=0, stop=750000), Slice(gradient=0, start=750000, stop=1500000)]
    """
    parts = min(elements, MAX_PARTS, parts_of(elements * element_bytes, unit)) if unit > 0 and elements else 1
    if unit > 0 and most * element_bytes >= MIN_UNIT:
        parts = max(parts, min(MAX_PARTS, -(-elements // most)))
    return [Slice(0, elements * i // parts, elements * (i + 1) // parts) for i in range(parts)]


def together(sizes: Sequence[int], least: int) -> List[int]:
    """How many neighbours at a time have ``least`` bytes or more; all together if they have less.

    >>> together([400, 400, 400, 400, 400], 800)
    [2, 3]
    >>> together([900, 900], 800), together([100, 100], 800), together([], 800)
    ([1, 1], [2], [])
    """
    counts: List[int] = []
    count = size = 0
    for one in sizes:
        count, size = count + 1, size + one
        if size >= least:
            counts.append(count)
            count = size = 0
    if count and counts:
        counts[-1] += count
    return counts or [count] * bool(count)


def groups(
    sizes: Sequence[int], kinds: Sequence[Optional[Hashable]], urgency: Sequence[int], unit: int, most: int = MOST
) -> List[Tuple[int, ...]]:
    """Which gradients share a message: two or more indices each, most urgent first.

    A group is sent when its last member is ready, and each of its layers waits for all of it. So members are small (at most ``unit`` / 2
    bytes each), neighbours in forward order, and few: up to ``GROUP_MEMBERS``, and ``unit`` * ``GROUP_SHARE`` bytes together.
    What stays alone lies between members without parting them. The next forward waits for the first groups before it has anything to
    compute. So they have less: ``GROUP_START`` of these bytes, and of the bytes of all gradients that are more urgent.

    Parameters
    ----------
    sizes : bytes of each gradient that travels.
    kinds : gradients of different kinds (types) never share a message; those of kind None share none.
    urgency : the place of each gradient in the forward order, as far as it is known.
    unit : bytes of a slice.
    most : elements of a group and its words, at most: MXNet spreads a larger array over all servers, where nobody would have all words.

    >>> groups([5, 5, 900, 20, 20, 20], ["f", "f", "f", "f", None, "f"], range(6), 100)
    [(0, 1), (3, 5)]
    """
    found: List[List[int]] = []
    newest: Dict[Hashable, List[int]] = {}
    room: Dict[Hashable, float] = {}  # of the newest group of each kind: bytes that it may still get
    largest = min(unit * GROUP_SHARE, (most - GROUP_MEMBERS) * LEAST_ELEMENT)
    urgent = 0  # bytes of what is more urgent
    for index in sorted(range(len(sizes)), key=lambda index: (urgency[index], index)):
        kind = kinds[index]
        if kind is not None and sizes[index] > 0 and is_small(sizes[index], unit):
            if kind not in newest or len(newest[kind]) == GROUP_MEMBERS or sizes[index] > room[kind]:
                newest[kind] = []
                found.append(newest[kind])
                room[kind] = min(largest, GROUP_START * (largest + urgent))
            newest[kind].append(index)
            room[kind] -= sizes[index]
        urgent += sizes[index]
    return [tuple(group) for group in found if len(group) > 1]


# -- collectives -----------------------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """A unit, or what may become a part of one. An ideal link begins to send its first slice at ``first``, and its last one at ``last``."""

    unit: MergedUnit
    first: float
    last: float


def partition(gradients: Sequence[Member], sizes: UnitSizes, rate: float) -> List[MergedUnit]:
    """The units of collectives that carry ``gradients``, most urgent first. Every element is in exactly one.

    How large a unit may be depends on when an ideal link of ``rate`` bytes/s would send it, which sends the most urgent gradient that is
    ready at any moment. A gradient of over one and a half units is cut into slices. Gradients and slices share a unit with their neighbours
    in urgency, up to this size, or half as much again with one of at most half of it. What is then left between large ones, as the biases
    of large layers, goes with the neighbour before it: see :func:`_no_little`.

    In the order of the list, the slices of one kind are whole gradients one after the other. Laid so into one flat array, each gradient and
    each unit is a contiguous range of it.

    >>> from prophet_mx.planning.unit_sizes import fixed_sizes
    >>> one, two = Member(8, 4, 0, urgency=0, ready=0.2), Member(44, 4, 0, urgency=1, ready=0.1)
    >>> [[tuple(part) for part in unit.slices] for unit in partition([one, two], fixed_sizes(20), 1000)]
    [[(0, 0, 2), (1, 0, 5)], [(1, 5, 11)]]
    """
    urgent = sorted(range(len(gradients)), key=lambda index: (gradients[index].urgency, index))
    parts: Dict[int, List[Part]] = {}
    for index, spans in zip(urgent, _ideal([gradients[index] for index in urgent], rate)):
        parts.setdefault(gradients[index].kind, []).extend(_slices(index, gradients[index], spans, sizes, rate))
    units = [part.unit for some in parts.values() for part in _no_little(merge(some, sizes, rate), sizes)]
    return sorted(units, key=lambda each: (each.urgency, each.kind))


def _ideal(gradients: Sequence[Member], rate: float) -> List[List[Sending]]:
    """When an ideal link sends each of these gradients, which are given most urgent first."""
    zero = min((gradient.ready for gradient in gradients), default=0.0)
    spans: List[List[Sending]] = [[] for _ in gradients]
    for each in sendings([gradient.ready - zero for gradient in gradients], [gradient.bytes / rate for gradient in gradients]):
        spans[each.gradient].append(Sending(each.gradient, each.start + zero, each.end + zero))
    return spans


def _slices(index: int, gradient: Member, spans: Sequence[Sending], sizes: UnitSizes, rate: float) -> Iterator[Part]:
    """A gradient in slices of the size that units have when an ideal link sends them; it sends the gradient during ``spans``."""
    count, start = gradient.bytes // gradient.itemsize, 0
    while True:
        begin = _moment(spans, start * gradient.itemsize / rate)
        size = sizes.during(begin, begin, rate)
        whole = (count - start) * gradient.itemsize <= 1.5 * size
        stop = count if whole else start + max(1, int(size) // gradient.itemsize)
        slices = (Slice(index, start, stop),)
        yield Part(MergedUnit(gradient.urgency, gradient.ready, slices, (stop - start) * gradient.itemsize, gradient.kind), begin, begin)
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


def merge(parts: Iterable[Part], sizes: UnitSizes, rate: float) -> List[Part]:
    """The units of parts of one kind, which are given most urgent first: neighbours travel together where :func:`_fit` says so."""
    return _joined(parts, lambda both, smaller: _fit(both.unit.bytes, smaller, sizes.during(both.first, both.last, rate)))


def _no_little(units: Iterable[Part], sizes: UnitSizes) -> List[Part]:
    """Units with less than ``LITTLE`` of the smallest are joined to a neighbour, whatever size suits its moment, up to one and a half times
    the largest. What the neighbour takes longer is little; alone they would take a start-up each."""
    return _joined(units, lambda both, smaller: smaller <= LITTLE * sizes.least and 2 * both.unit.bytes <= 3 * sizes.most)


def _fit(both: int, smaller: int, size: float) -> bool:
    """Whether two neighbours of so many bytes together, and in the smaller one, may share a unit of about ``size`` bytes."""
    return both <= size or (2 * smaller <= size and 2 * both <= 3 * size)


def _joined(parts: Iterable[Part], fit: Callable[[Part, int], bool]) -> List[Part]:
    """Neighbours joined one after the other where ``fit`` says so, which gets both as one, and the bytes of the smaller. Slices of one
    gradient stay apart."""
    found: List[Part] = []
    for part in parts:
        if found and found[-1].unit.slices[-1].gradient != part.unit.slices[0].gradient:
            both = _together(found[-1], part)
            if fit(both, min(found[-1].unit.bytes, part.unit.bytes)):
                found[-1] = both
                continue
        found.append(part)
    return found


def _together(one: Part, other: Part) -> Part:
    """Two neighbours as one, of which the first is the more urgent."""
    (urgency, ready, slices, size, kind), more = one.unit, other.unit
    unit = MergedUnit(urgency, max(ready, more.ready), slices + more.slices, size + more.bytes, kind)
    return Part(unit, min(one.first, other.first), max(one.last, other.last))
