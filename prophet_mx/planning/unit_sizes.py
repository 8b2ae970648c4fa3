"""How large units are: of messages to servers by the policy (the formulas are in sizes.py), of collectives by what one costs.

While several are under way, a collective takes a start-up or its bytes' time, whichever is longer (:class:`CollectiveCost`). An ideal link
sends a unit x seconds before or after backward ends. The unit has x * rate / GROWTH bytes, and never less than MARGIN * startup * rate, nor
more than AT_MOST * startup * rate (:func:`collective_sizes`). docs/how-it-works.md ("How sizes are chosen") derives this.
"""

from typing import NamedTuple, Optional

from ..policies import POLICIES
from ..sizes import MAX_COLLECTIVE_UNIT, Traffic, message_count, message_time, wire_time

MARGIN = 2  # start-ups: the time that the bytes of a collective take at least, if enough bytes belong together
AT_MOST = 16  # start-ups: the time that they take at most
GROWTH = 4  # units take this part of the time that is left until the end of backward, or has passed since
MIN_COLLECTIVE_UNIT = 16_000  # bytes

# A unit that a user has chosen is too small if it makes so many times as many messages as the policy would (or as LEAST_MESSAGES), and
# these take so many times as long as their bytes.
TOO_MANY = 4
TOO_LONG = 2
LEAST_MESSAGES = 100


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


def too_small(policy: str, traffic: Traffic, forced: Optional[int]) -> str:
    """What is wrong with a unit that a user has chosen, in words: its messages take far longer than their bytes, and far more of them than
    the policy would make. '' if that is not so, or if there is no such choice.

    >>> print(too_small("prophet", Traffic([2_000_000] * 4, rate=125e6, message=0.00025), 256))
    unit=256 makes 31252 messages per iteration. They take about 7.8 s, their bytes 0.064 s. 'auto' would make 104, of up to 77390 bytes
    """
    if forced is None:
        return ""
    chosen = unit_bytes(policy, traffic)
    messages, usual = message_count(traffic, forced), message_count(traffic, chosen)
    seconds, wire = messages * message_time(traffic), wire_time(traffic)
    if messages < TOO_MANY * max(usual, LEAST_MESSAGES) or seconds < TOO_LONG * wire:
        return ""
    choice = f"of up to {chosen} bytes" if chosen else "of whole gradients"
    return (
        f"unit={forced} makes {messages} messages per iteration. They take about {seconds:.2g} s, their bytes {wire:.2g} s. 'auto' would "
        f"make {usual}, {choice}"
    )


def too_small_for_collectives(total: int, forced: Optional[int]) -> str:
    """As :func:`too_small`, for gradients of ``total`` bytes that collectives carry.

    >>> too_small_for_collectives(8_000_000, 256)
    "unit=256 makes about 31250 collectives per iteration. 'auto' makes 500 at most, of 16000 bytes or more"
    """
    if forced is None or forced * TOO_MANY > MIN_COLLECTIVE_UNIT or total < forced * TOO_MANY * LEAST_MESSAGES:
        return ""
    least = -(-total // MIN_COLLECTIVE_UNIT)
    return (
        f"unit={forced} makes about {-(-total // forced)} collectives per iteration. 'auto' makes {least} at most, of "
        f"{MIN_COLLECTIVE_UNIT} bytes or more"
    )


def below_a_unit(name: str, limit: Optional[int], unit: int) -> str:
    """What is wrong with a limit in bytes, in words, if it is smaller than a unit (0: gradients are whole); '' if nothing is.

    >>> below_a_unit("window", 512, 100_000)
    'window=512 is less than a unit of 100000 bytes, so units leave one at a time, and the link idles between them'
    """
    if limit is None or limit >= unit:
        return ""
    return f"{name}={limit} is less than a unit of {unit} bytes, so units leave one at a time, and the link idles between them"


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
