"""Gradients to units: what one message carries. Pure: the same sizes in, the same units out, on every worker.

A large gradient is cut into slices of equal size, so that what is more urgent never waits behind much of it; a small one is a unit
by itself. Units never cross gradients, so a parameter that is not pushed in some iteration holds nothing up.
"""

from numbers import Integral
from typing import Any, List, NamedTuple, Optional

from ..config import shown
from ..errors import ConfigError
from ..policies import POLICIES
from ..profiling.steps import finite
from ..sizes import MIN_UNIT, START_RATE

MOST = 2**62
MAX_PARTS = 1 << 20  # slices of one gradient, at most


class Slice(NamedTuple):
    """Elements ``start`` to ``stop`` of a flat gradient."""

    start: int
    stop: int


def unit_bytes(policy: str, rate: Optional[float], total: int, forced: Optional[int], workers: int = 1) -> int:
    """The size of a unit in bytes; 0 leaves every gradient whole.

    ``rate`` is this worker's share of a server's link (bytes/s), None if not known; ``total`` what it pushes per iteration to
    one server (bytes); ``forced`` is the user's own choice (bytes); ``workers`` is how many share the server's link.

    A unit takes 4 ms on the wire. While it does, a server gets one like it from every worker: with more than 16 workers units are
    larger, so that the messages are not too many for it.

    >>> unit_bytes("prophet", 59e6, 50_000_000, None)
    236000
    >>> unit_bytes("prophet", 59e6, 512_000_000, None)
    500000
    >>> unit_bytes("prophet", 19e6, 1_600_000, None, workers=64)
    304000

    Raises ConfigError if an argument is not what is stated above.
    """
    if not isinstance(policy, str) or policy not in POLICIES:
        raise ConfigError(f"policy={shown(policy):.80} is not allowed; allowed: one of {', '.join(POLICIES)}")
    if rate is not None and (finite(rate) is None or rate < 0):
        raise ConfigError(f"rate={shown(rate):.80} is not allowed; allowed: None, or a finite number of bytes/s from 0")
    _need_whole("total", total, 0)
    _need_whole("workers", workers, 1)
    if forced is not None:
        return _need_whole("forced", forced, 1)
    unit = POLICIES[policy].unit
    return int(unit(rate or START_RATE, total, workers)) if callable(unit) else unit


def cut(elements: int, element_bytes: int, unit: int, most: int = MOST) -> List[Slice]:
    """The slices of one gradient of ``elements`` elements for units of about ``unit`` bytes (0: whole), equal to within one element.

    A gradient of up to one and a half units stays whole: two halves would be small for what they cost. But no slice has more than
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
    parts = 1 if unit == 0 or 2 * size <= 3 * unit else min(elements, MAX_PARTS, -(-size // unit))
    if unit > 0 and most * element_bytes >= MIN_UNIT:
        parts = max(parts, min(MAX_PARTS, -(-elements // most)))
    return [Slice(elements * i // parts, elements * (i + 1) // parts) for i in range(parts)]


def _need_whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= MOST:
        raise ConfigError(f"{name}={shown(value):.80} is not allowed; allowed: a whole number from {least} to 2**62")
    return int(value)
