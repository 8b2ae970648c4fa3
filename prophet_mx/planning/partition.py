"""Gradients to units: what one message carries. Pure: the same sizes in, the same units out, on every worker.

A large gradient is cut into slices of equal size, so that what is more urgent never waits behind much of it; a small one is a unit
by itself. Units never cross gradients, so a parameter that is not pushed in some iteration holds nothing up.
"""

from numbers import Integral
from typing import Any, List, NamedTuple, Optional, Sequence

from ..config import shown
from ..errors import ConfigError
from ..policies import POLICIES
from ..profiling.steps import finite
from ..sizes import MIN_UNIT, Traffic, parts_of

MOST = 2**62
MAX_PARTS = 1 << 20  # slices of one gradient, at most


class Slice(NamedTuple):
    """Elements ``start`` to ``stop`` of a flat gradient."""

    start: int
    stop: int


def unit_bytes(policy: str, traffic: Traffic, forced: Optional[int] = None) -> int:
    """The size of a unit in bytes under a policy; 0 leaves every gradient whole. ``forced`` is the user's own choice (bytes).

    >>> unit_bytes("prophet", Traffic([16_000_000], rate=62.5e6, message=0.0005))
    127338
    >>> unit_bytes("priority", Traffic([16_000_000]))
    160000

    Raises ConfigError if an argument is not what is stated.
    """
    if not isinstance(policy, str) or policy not in POLICIES:
        raise ConfigError(f"policy={shown(policy):.80} is not allowed; allowed: one of {', '.join(POLICIES)}")
    for name in ("rate", "message"):
        value = getattr(traffic, name)
        if finite(value) is None or value < 0:
            raise ConfigError(f"{name}={shown(value):.80} is not allowed; allowed: a finite number from 0")
    for size in traffic.sizes:
        _need_whole("sizes", size, 0)
    _need_whole("workers", traffic.workers, 1)
    _need_whole("servers", traffic.servers, 1)
    if forced is not None:
        return _need_whole("forced", forced, 1)
    unit = POLICIES[policy].unit
    return int(unit(traffic)) if callable(unit) else unit


def cut(elements: int, element_bytes: int, unit: int, most: int = MOST) -> List[Slice]:
    """The slices of one gradient of ``elements`` elements for units of about ``unit`` bytes (0: whole), equal to within one element.

    A gradient of up to one and a half units stays whole (:func:`~prophet_mx.sizes.parts_of`). But no slice has more than
    ``most`` elements, if so many make a unit at all: MXNet spreads an array from ``MXNET_KVSTORE_BIGARRAY_BOUND`` elements on over all
    servers, and a unit of half-precision numbers has twice as many as one of others.

    >>> cut(10, 4, 16)
    [Slice(start=0, stop=3), Slice(start=3, stop=6), Slice(start=6, stop=10)]
    >>> cut(1500000, 2, 4000000, most=999999)
    [Slice(start=0, stop=750000), Slice(start=750000, stop=1500000)]

    Raises ConfigError if an argument is not a whole number, is negative, or ``most`` is 0.
    """
    size = _need_whole("elements", elements, 0) * _need_whole("element_bytes", element_bytes, 0)
    unit, most = _need_whole("unit", unit, 0), _need_whole("most", most, 1)
    parts = min(elements, MAX_PARTS, parts_of(size, unit)) if unit > 0 and elements else 1
    if unit > 0 and most * element_bytes >= MIN_UNIT:
        parts = max(parts, min(MAX_PARTS, -(-elements // most)))
    return [Slice(elements * i // parts, elements * (i + 1) // parts) for i in range(parts)]


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


def _need_whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= MOST:
        raise ConfigError(f"{name}={shown(value):.80} is not allowed; allowed: a whole number from {least} to 2**62")
    return int(value)
