"""Gradients to units: what one message carries. Pure: the same sizes in, the same units out, on every worker.

A large gradient is cut into slices of equal size, so that what is more urgent never waits behind much of it; a small one is a unit
by itself. Units never cross gradients, so a parameter that is not pushed in some iteration holds nothing up.
"""
from typing import List, NamedTuple, Optional

UNIT_SECONDS = 0.004        # time on the wire of one unit; smaller ones cost more per message than they save in waiting
UNIT_SHARE = 1 / 256        # of a worker's bytes per iteration: a smaller unit cannot shorten the iteration by as much as it costs
MIN_UNIT = 32_000           # bytes
MAX_UNIT = 4_000_000        # bytes
START_RATE = 125e6          # bytes/s where nothing was measured
CREDIT_UNIT = 4_000_000     # bytes: the 1 million float32 parameters of ByteScheduler's default partition (Peng et al., SOSP 2019)
P3_UNIT = 160_000           # bytes: the 40,000 float32 elements of MXNet's P3 (Jayarajan et al., MLSys 2019)


class Slice(NamedTuple):
    """Elements ``start`` to ``stop`` of a flat gradient."""

    start: int
    stop: int


def unit_bytes(policy: str, rate: Optional[float], total: int, forced: Optional[int]) -> int:
    """The size of a unit in bytes; 0 leaves every gradient whole.

    ``rate`` is this worker's share of a server's link (bytes/s), None if not known; ``total`` what it pushes per iteration (bytes);
    ``forced`` is the user's own choice (bytes).

    >>> unit_bytes("prophet", 59e6, 50_000_000, None)
    236000
    >>> unit_bytes("prophet", 59e6, 102_400_000, None)
    400000
    """
    if forced is not None:
        return forced
    if policy in ("fifo", "prophet-icpp21"):
        return 0
    if policy == "priority":
        return P3_UNIT
    if policy == "credit":
        return CREDIT_UNIT
    size = max((rate or START_RATE) * UNIT_SECONDS, total * UNIT_SHARE)
    return int(min(MAX_UNIT, max(MIN_UNIT, size)))


def cut(elements: int, element_bytes: int, unit: int) -> List[Slice]:
    """The slices of one gradient of ``elements`` elements for units of about ``unit`` bytes (0: whole), equal to within one element.

    A gradient of up to one and a half units stays whole: two halves would be small for what they cost.

    >>> cut(10, 4, 16)
    [Slice(start=0, stop=3), Slice(start=3, stop=6), Slice(start=6, stop=10)]
    """
    size = elements * element_bytes
    parts = 1 if unit <= 0 or 2 * size <= 3 * unit else min(elements, -(-size // unit))
    return [Slice(elements * i // parts, elements * (i + 1) // parts) for i in range(parts)]
