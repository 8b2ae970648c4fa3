"""How large units are, and how much of them may be in flight and unanswered: the model that all sizes are derived from.

Keep units and unanswered bytes small: what has left cannot be overtaken by what becomes ready later. But every unit is a message, which
takes time of the worker and of the server. docs/how-it-works.md ("How sizes are chosen") derives the formulas and says what was tried.

**Unit.** A worker sends n messages per iteration, D bytes in all, at R bytes/s. A message takes a worker m seconds while all workers send
as many as they can. The unit is the smallest one that keeps messages hidden behind the wire:

    n * m <= share * D / R
    share = SHARE * sqrt(x) * max(1, workers / servers / 2),  x = servers * m / (D / R)

n counts slices, gradients that stay whole, and groups of small ones, as far as sizes alone tell of groups. Where whole gradients and groups
alone take most of the share, slices may still take half of it, without the factor for many workers. A unit is never larger than
D / servers, what a server gets of a worker per iteration.

**Window.** Bytes in flight to a server below which the next unit goes. REACTION is the time in which threads are woken:

    window = unit + rate * (round trip + REACTION)

**Lead limit.** Unanswered bytes above which a worker waits for the others. ``message`` is what the link carries in the time that a message
takes the server, and each unanswered unit counts by so much more than its bytes:

    lead = 2 * window + unit + LEAD_MESSAGES * message
"""

import math
from typing import NamedTuple, Sequence, Tuple

SHARE = 6.8
LEAST_SHARE, MOST_SHARE = 0.05, 0.9  # of the time on the wire
MESSAGE_SECONDS = 0.00025  # time of a server for a message where nothing was measured
UNIT_SHARE = 1 / 1024  # of a worker's bytes per iteration and server: no gradient traffic needs more slices than that
REACTION = 0.001  # seconds until a thread that is woken sends
LEAD_MESSAGES = 2
GROUP_SHARE = 0.5  # of a unit: the bytes of a group, at most
GROUP_MEMBERS = 16
UNIT_SECONDS = 0.004  # time on the wire of what limits are measured in where gradients stay whole
MIN_UNIT = 4_000  # bytes
MAX_UNIT = 4_000_000  # bytes: with several servers MXNet spreads larger arrays over all of them
MAX_LONE_UNIT = 32_000_000  # bytes: with one server
MAX_COLLECTIVE_UNIT = 64_000_000  # bytes: of an all-reduce
LARGEST_UNIT = max(MAX_UNIT, MAX_LONE_UNIT, MAX_COLLECTIVE_UNIT)  # bytes: that a setting may ask for
MAX_BYTES = 2**40  # 1 TiB: of a window, a lead or a trace; says "no limit"
START_RATE = 125e6  # bytes/s where nothing was measured
COPY_BYTES = 1_000_000  # of one copy between a device and the host, at the least: slices that are smaller are copied together
_STEP = 1.05  # from one size to the next that is tried


class Traffic(NamedTuple):
    """What a worker sends per iteration, and over what.

    Attributes
    ----------
    sizes : bytes of each gradient.
    rate : bytes/s to each server while all workers send, 0 if not known.
    message : seconds that a message takes a worker while all workers send as many as they can, 0 if not known.
    workers, servers : how many.
    grouped : whether small gradients share messages.
    """

    sizes: Sequence[int]
    rate: float = 0.0
    message: float = 0.0
    workers: int = 1
    servers: int = 1
    grouped: bool = False


def parts_of(size: int, unit: float) -> int:
    """Slices of a gradient of ``size`` bytes. Up to one and a half units it stays whole: two halves would be small for what they cost."""
    return 1 if 2 * size <= 3 * unit else -int(-size // unit)


def is_small(size: int, unit: float) -> bool:
    """Whether a gradient of ``size`` bytes may share a message with others."""
    return 2 * size <= unit


def message_bytes(rate: float, message: float, servers: int) -> int:
    """Bytes that a link carries at ``rate`` (bytes/s) in the time that its server takes for a message of each worker; ``message`` and
    ``servers`` are as in :class:`Traffic`."""
    return int(rate * message * servers)


def wire_time(traffic: Traffic) -> float:
    """Seconds that a worker's bytes of an iteration take."""
    return sum(traffic.sizes) / ((traffic.rate or START_RATE) * traffic.servers)


def message_time(traffic: Traffic) -> float:
    """Seconds that a message takes a worker, an estimate where nothing was measured."""
    return traffic.message or MESSAGE_SECONDS * max(1.0, traffic.workers / traffic.servers)


def message_count(traffic: Traffic, unit: float) -> int:
    """Messages of an iteration, about, with units of so many bytes; 0 leaves every gradient whole and alone."""
    return sum(_messages(traffic, unit)) if unit else len(traffic.sizes)


def smallest_unit(traffic: Traffic) -> float:
    """Bytes of the smallest unit that messages allow; see the top of this file.

    >>> int(smallest_unit(Traffic([16_000_000], rate=62.5e6, message=0.0005)))
    104761
    """
    total = sum(traffic.sizes)
    wire, message = wire_time(traffic), message_time(traffic)
    share = max(LEAST_SHARE, SHARE * math.sqrt(traffic.servers * message / wire)) if wire else LEAST_SHARE
    budget = min(MOST_SHARE, share * max(1.0, traffic.workers / traffic.servers / 2)) * wire
    least = min(MOST_SHARE, share) / 2 * wire
    most = min(MAX_UNIT, max(MIN_UNIT, total / traffic.servers)) if traffic.servers > 1 else MAX_LONE_UNIT
    unit = min(most, max(MIN_UNIT, total / traffic.servers * UNIT_SHARE))
    while unit < most:
        slices, whole = _messages(traffic, unit)
        if slices * message <= max(budget - whole * message, least):
            break
        unit *= _STEP
    return min(most, unit)


def _messages(traffic: Traffic, unit: float) -> Tuple[int, int]:
    """Messages of an iteration: slices, and others. Groups are those of :func:`~prophet_mx.planning.units.groups`, but for types, for the
    forward order and for the first ones, which are smaller."""
    slices = whole = members = 0
    room = 0.0  # bytes that the newest group may still get
    for size in traffic.sizes:
        parts = parts_of(size, unit)
        if parts > 1:
            slices += parts
        elif not (traffic.grouped and is_small(size, unit)):
            whole += 1
        else:
            if size > room or members == GROUP_MEMBERS:
                whole, members, room = whole + 1, 0, unit * GROUP_SHARE
            members, room = members + 1, room - size
    return slices, whole
