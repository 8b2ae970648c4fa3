"""How large units are: of messages to servers by the policy (the formulas are in sizes.py), of collectives by what one costs.

While several are under way, a collective takes a start-up or its bytes' time, whichever is longer (:class:`CollectiveCost`). An ideal link
sends a unit x seconds before or after backward ends. The unit has x * rate / GROWTH bytes, and never less than MARGIN * startup * rate, nor
more than AT_MOST * startup * rate (:func:`collective_sizes`). docs/how-it-works.md ("How sizes are chosen") derives this.
"""

from typing import NamedTuple, Optional

from ..policies import POLICIES
from ..sizes import MAX_COLLECTIVE_UNIT, Traffic

MARGIN = 2  # start-ups: the time that the bytes of a collective take at least, if enough bytes belong together
AT_MOST = 16  # start-ups: the time that they take at most
GROWTH = 4  # units take this part of the time that is left until the end of backward, or has passed since
MIN_COLLECTIVE_UNIT = 16_000  # bytes


def unit_bytes(policy: str, traffic: Traffic, forced: Optional[int] = None) -> int:
    """The size of a message's unit in bytes under a policy; 0 leaves every gradient whole. ``forced`` is the user's own choice (bytes).

    >>> unit_bytes("prophet", Traffic([16_000_000], rate=62.5e6, message=0.0005))
    104761
    >>> unit_bytes("priority", Traffic([16_000_000]))
    160000
    """
    if forced is not None:
        return forced
    unit = POLICIES[policy].unit
    return int(unit(traffic)) if callable(unit) else unit


class CollectiveCost(NamedTuple):
    """What an all-reduce of b bytes takes while others are under way: ``startup`` or b / ``rate``, whichever is longer.

    Attributes
    ----------
    startup : seconds from one tiny collective to the next.
    rate : bytes/s of payload (a ring of N ranks sends 2 (N - 1) / N times as much over each link).
    """

    startup: float
    rate: float

    def seconds(self, size: int) -> float:
        """Seconds from the end of one collective to the end of the next, of ``size`` bytes."""
        return max(self.startup, size / self.rate)


class UnitSizes(NamedTuple):
    """How large units of collectives may be.

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


def collective_sizes(cost: CollectiveCost, turn: float) -> UnitSizes:
    """The sizes of units for collectives of this cost, where backward ends at ``turn``; see the top of this file.

    >>> collective_sizes(CollectiveCost(startup=0.001, rate=120e6), turn=0.2)
    UnitSizes(least=240000, most=1920000, turn=0.2)
    """
    least, most = (
        round(min(MAX_COLLECTIVE_UNIT, max(MIN_COLLECTIVE_UNIT, startups * cost.startup * cost.rate))) for startups in (MARGIN, AT_MOST)
    )
    return UnitSizes(least, most, turn)
