"""The orders of a job's units, from its profile. Pure: the same numbers in, the same orders out, on every worker.

**Messages to servers** leave by two orders (:func:`orders`).

*Urgency* says which of two ready units leaves first: the one that the next forward pass needs first. The caller's order of keys is not
always the forward order (``gluon.Trainer`` sorts parameters by name). But backward runs forward's layers in reverse, so the gradients of a
later step are needed earlier.

The lead limit follows the *total order*, the same on all workers: the order in which an ideal link of the worker's rate would finish the
units. Urgent units pass the lead limit in any case. The total order says which others may go ahead. With a higher rate it would let units
ahead that are still waiting when the last gradients become ready: with BERT, whose last one is a fifth of all bytes, 15% more rate cost 5%.

**Collectives** need all ranks at once, so that all ranks must start them in one order (:func:`static_order`). A queue by priority on each
rank cannot give one, since ranks become ready at slightly different times. A profile can: every rank computes the same order
beforehand from the same numbers (rank 0's, which go to all), and starts each unit when it is that unit's turn and its gradients are there.

It is the order of an ideal link that is never idle while a unit is ready, always takes the most urgent one that is ready, and does not
interrupt it. The order in which a link *with* interruptions would finish (``bound.finishing_order``) is not such an order: to start a
unit only when its turn to finish comes leaves the link idle in the time in which it would have been interrupted. How good the order is
depends on the rate. In a simulation with rho 1, a rate that was 5% too low or too high cost 4% of the time: with one too low the link waits
for urgent units that are not ready yet, with one too high urgent units wait behind others.
"""

import heapq
import math
import re
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from .bound import finishing_order
from .unit_sizes import CollectiveCost
from .units import MergedUnit

NEVER = 1e9  # ready time of a gradient that is not in the profile: after all others (seconds)


class Orders(NamedTuple):
    """By unit: its urgency (0 is the most urgent) and its position in the total order."""

    urgencies: List[int]
    positions: List[int]


def forward_order(ready: Dict[int, float], steps: Sequence[Sequence[int]]) -> List[int]:
    """Gradients, most urgent first: those of later steps before those of earlier ones, in the caller's order within a step. ``steps``
    hold gradient indices, earliest step first; gradients of ``ready`` that are in none come last.

    >>> forward_order({0: 0.2, 1: 0.0, 2: 0.2}, [[1], [0, 2]])
    [0, 2, 1]
    """
    order = [gradient for step in reversed(steps) for gradient in sorted(step)]
    known = set(order)
    return order + sorted(gradient for gradient in ready if gradient not in known)


def natural_places(names: Sequence[str]) -> List[int]:
    """The place of each parameter in the forward order, as far as names tell: by the texts, but numbers in them count as numbers. A layer's
    name usually ends with the count of such layers before it. ``gluon.Trainer`` numbers parameters by the texts alone.

    >>> natural_places(["conv0_weight", "conv10_weight", "conv2_weight"])
    [0, 2, 1]
    """
    return ranked([_with_numbers(name) for name in names])


def ranked(keys: Sequence[Any]) -> List[int]:
    """The place of each of these keys in their order."""
    places = [0] * len(keys)
    for place, index in enumerate(sorted(range(len(keys)), key=keys.__getitem__)):
        places[index] = place
    return places


def _with_numbers(name: str) -> List[Tuple[str, int]]:
    return [(text, int(digits or 0)) for text, digits in re.findall(r"([^0-9]*)([0-9]*)", name, re.ASCII)]


def total_order(ready: Sequence[float], sizes: Sequence[int], rate: float) -> List[int]:
    """The total order of units, given most urgent first, by when each becomes ready (seconds) and its bytes. ``rate`` is that of the worker
    to all servers (bytes/s)."""
    return finishing_order(ready, [max(1, size) / rate for size in sizes])


def orders(units: Sequence[Tuple[Sequence[int], int]], ready: Dict[int, float], steps: Sequence[Sequence[int]], rate: float) -> Orders:
    """The orders of ``units``, each (its gradients, bytes), the units of one gradient being in the order of its slices. A group is ready
    when all of its gradients are that the profile has, and as urgent as the most urgent.

    ``ready`` is by gradient (seconds after the iteration's first ready one), ``rate`` the worker's to all servers in bytes/s.
    """
    places = {gradient: place for place, gradient in enumerate(forward_order(ready, steps))}
    last = len(places)
    most_urgent = [min(places.get(gradient, last + gradient) for gradient in gradients) for gradients, _ in units]
    complete = [max((ready[gradient] for gradient in gradients if gradient in ready), default=NEVER) for gradients, _ in units]
    by_urgency = sorted(range(len(units)), key=lambda unit: (most_urgent[unit], unit))
    finished = total_order([complete[unit] for unit in by_urgency], [units[unit][1] for unit in by_urgency], rate)
    urgencies, positions = [0] * len(units), [0] * len(units)
    for urgency, unit in enumerate(by_urgency):
        urgencies[unit] = urgency
    for position, urgency in enumerate(finished):
        positions[by_urgency[urgency]] = position
    return Orders(urgencies, positions)


def differ(one: Orders, other: Orders) -> bool:
    """Whether it matters which of two orders is used: a unit has places in them that are over a twentieth of all units apart."""
    apart = len(one.urgencies) / 20
    return any(abs(a - b) > apart for ours, theirs in zip(one, other) for a, b in zip(ours, theirs))


def static_order(units: Sequence[MergedUnit], cost: CollectiveCost) -> List[int]:
    """The order (indices) in which all ranks start ``units``: whenever a link of this cost is free, the most urgent that is ready goes.

    Cost O(n log n) for n units.

    >>> late, early, big = (MergedUnit(urgency, ready, (), size, 0) for urgency, ready, size in [(0, 0.2, 8), (1, 0.1, 8), (2, 0.0, 150)])
    >>> static_order([late, early, big], CollectiveCost(0.0, 1000.0))
    [2, 1, 0]
    >>> static_order([late, early, big], CollectiveCost(0.0, 500.0))
    [2, 0, 1]
    """
    coming = sorted(range(len(units)), key=lambda index: units[index].ready, reverse=True)
    ready: List[Tuple[int, int]] = []
    order: List[int] = []
    clock = -math.inf
    while coming or ready:
        if not ready:
            clock = max(clock, units[coming[-1]].ready)
        while coming and units[coming[-1]].ready <= clock:
            index = coming.pop()
            heapq.heappush(ready, (units[index].urgency, index))
        order.append(heapq.heappop(ready)[1])
        clock += cost.seconds(units[order[-1]].bytes)
    return order
