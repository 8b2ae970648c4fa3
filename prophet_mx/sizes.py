"""How large units are, and how much of them may be in flight and unanswered: the model that all sizes are derived from.

Both want to be small. What has left cannot be overtaken: when a gradient becomes ready that the next forward waits for, all that is in
flight and unanswered is in front of it. In an iteration of 150 ms every 1.5 ms there cost a percent. But units cannot be as small as one
likes, as each is a message, and every message takes some time of the worker and of the server, whatever its size.

**Unit.** A worker sends n messages per iteration, D bytes in all, at R bytes/s. When all workers send as many messages as they can, one
of them takes a worker ``m`` seconds: if the server is what limits them, its time for one message times the number of workers, divided by
the number of servers. The wire needs D / R; the busiest process needs n * m of it for messages. While that share is well under 1, messages
hide behind the wire; at 1 queues grow without limit. So the unit is the smallest one that keeps

    n * m <= share * D / R

n counts small gradients too, which cannot be merged: where they alone take most of the share, slices may still take half of it (without
the factor for many workers, below).
With slices alone (n = D / u) and servers as the limit (R = servers / workers * B, m = workers / servers * c) this is u = B * c / share:
what a server's link of rate B carries in the time c of a message, times four if the share is a quarter.

How large the share may be depends on what a larger one is worth. What is in front of the first layer is a few units, which take a worker
servers * m / share; relative to the iteration that is x / share with x = servers * m / (D / R). What messages cost grows with the share.
The sum is least where the share grows with the square root of x:

    share = SHARE * sqrt(x) * max(1, workers / servers / 2)

In sweeps of the simulator over 2 to 256 workers (benchmarks/sizes.py) 0.25 to 0.5 was as good as the best at x = 0.002, 0.8 at x = 0.02,
and 1 at 0.09. Above 1 times explode. With four workers to a server the same x cost two to three times as much, most
likely because a sum waits for the last of more workers, and the best units were half as large; hence the last factor. Where there is a
choice the share is the smaller one: the cost is measured while nothing else is done, and in a job bytes take time of the same processors.
In long iterations x is small, and so is the share: two workers and two servers at 1 Gbit/s on two cores, ResNet-50 with 1 s of compute
(x = 0.0005), took 1.14 of the bound with a share of 0.5, 1.08 with 0.25, 1.03 as it is now.

A unit is never larger than what a server gets of a worker per iteration, D / servers: with larger ones some servers have a unit more than
others, and these wait for it. In the simulator that took 1,000 workers with 250 servers, 200 us a message, from 5.5 to 3.7 of the bound.

**Window.** Bytes in flight to a server below which the next unit goes. The link must not run dry before a release reaches it, which takes
a round trip and REACTION, the time in which threads are woken; and a unit must be able to leave while the one before it does:

    window = unit + rate * (round trip + REACTION)

**Lead limit.** Unanswered bytes above which a worker waits for the others. What is unanswered is what is in flight here, as much that
is in flight from a worker that sends a little later, and what the server handles, of which there is one unit and LEAD_MESSAGES:

    lead = 2 * window + unit + LEAD_MESSAGES * message

Here ``message`` is what the link carries in the time that a message takes the server, and each unanswered unit counts by so much more than
its bytes: a server that has a hundred tiny messages before it is as far from an urgent one as if they were large. In the simulator, 1 to 2
messages were best (ResNet-50 on 4 workers and 2 servers at 500 Mbit/s, 150 ms, 200 us a message: 1.12 of the bound if only bytes count,
1.09 so).

**Not done.** The window could shrink to what the link carries until a more urgent step is due, so that less is in front of it. In 16
simulated cells of 150 ms (2 to 64 workers) that cost more than it gained: 1.047 of the bound in the mean without it; 1.051, 1.065 and 1.086
where it began half a window, one, and two windows before the step. What the link carries while it is nearly empty is lost for good.

With many workers a unit takes long on a worker's share of the link; then the window is little more than one unit, and the lead limit than
three. With few, round trip and REACTION are what counts.
"""

import math
from typing import NamedTuple, Sequence

SHARE = 5.6
LEAST_SHARE, MOST_SHARE = 0.05, 0.9  # of the time on the wire
MESSAGE_SECONDS = 0.00025  # time of a server for a message where nothing was measured
UNIT_SHARE = 1 / 1024  # of a worker's bytes per iteration and server: no gradient traffic needs more slices than that
REACTION = 0.001  # seconds until a thread that is woken sends
LEAD_MESSAGES = 2
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
    """

    sizes: Sequence[int]
    rate: float = 0.0
    message: float = 0.0
    workers: int = 1
    servers: int = 1


def parts_of(size: int, unit: float) -> int:
    """Slices of a gradient of ``size`` bytes. Up to one and a half units it stays whole: two halves would be small for what they cost."""
    return 1 if 2 * size <= 3 * unit else -int(-size // unit)


def message_bytes(rate: float, message: float, servers: int) -> int:
    """Bytes that a link carries at ``rate`` (bytes/s) in the time that its server takes for a message of each worker; ``message`` and
    ``servers`` are as in :class:`Traffic`."""
    return int(rate * message * servers)


def smallest_unit(traffic: Traffic) -> float:
    """Bytes of the smallest unit that messages allow; see the top of this file.

    >>> int(smallest_unit(Traffic([16_000_000], rate=62.5e6, message=0.0005)))
    127338
    """
    total = sum(traffic.sizes)
    wire = total / ((traffic.rate or START_RATE) * traffic.servers)
    message = traffic.message or MESSAGE_SECONDS * max(1.0, traffic.workers / traffic.servers)
    share = max(LEAST_SHARE, SHARE * math.sqrt(traffic.servers * message / wire)) if wire else LEAST_SHARE
    budget = min(MOST_SHARE, share * max(1.0, traffic.workers / traffic.servers / 2)) * wire
    least = min(MOST_SHARE, share) / 2 * wire
    most = min(MAX_UNIT, max(MIN_UNIT, total / traffic.servers)) if traffic.servers > 1 else MAX_LONE_UNIT
    unit = min(most, max(MIN_UNIT, total / traffic.servers * UNIT_SHARE))
    while unit < most:
        parts = [parts_of(size, unit) for size in traffic.sizes]
        whole = parts.count(1)
        slices = sum(parts) - whole
        if slices * message <= max(budget - whole * message, least):
            break
        unit *= _STEP
    return min(most, unit)
