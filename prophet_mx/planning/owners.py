"""Rounds in two halves: each gradient is summed up on one rank, its *owner*, which tells the sum to the others later. Pure.

The norm of all gradients is needed before the first update of an iteration that clips them. With all-reduces it is known when everything
is transferred. In halves it is known after the first: each owner knows the norms of its own gradients, whole, and tells them to all. So the
second half, as many bytes again, travels beside the next forward. What the link has to spare in backward it uses for second halves as well.

A gradient that is larger than a rank's share would be most of what one link carries. So each rank owns a part of it, and they find its norm
one after the other (torch/norms.py). Where they cannot, all ranks reduce such a gradient together, at once.

The norm waits for all first halves, so none of them is more urgent than another. They go as they become ready, and so that the links to all
owners are busy. Second halves go as the next forward needs them.
"""

import heapq
import math
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from .unit_sizes import CollectiveCost
from .units import MergedUnit, Slice

# A unit whose turn it is keeps all others waiting until it is ready. So a second half goes early only if its first half is long over.
LATENCY = 0.015  # seconds after the first half of a unit until the second may have its turn in backward
AT_THE_END = 0.005  # seconds that the link is busy with second halves while the last first halves land


def owners(sizes: Sequence[int], ready: Sequence[float], ranks: int) -> List[Optional[int]]:
    """The owner of each gradient of so many bytes; None if it is larger than a rank's share. Of all that is ``ready`` (seconds) at any
    moment, the ranks own about as much, so that links are busy in both directions.

    >>> owners([40, 10, 30, 20], [0.3, 0.2, 0.1, 0.0], 2), owners([90, 10, 10], [0.0, 0.0, 0.0], 2)
    ([0, 0, 1, 0], [None, 0, 1])
    """
    share = sum(sizes) / ranks
    loads = [0] * ranks
    found: List[Optional[int]] = [None] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: (ready[index], -sizes[index], index)):
        if sizes[index] <= share:
            found[index] = owner = min(range(ranks), key=loads.__getitem__)
            loads[owner] += sizes[index]
    return found


def owner_of_part(part: Slice, elements: int, ranks: int) -> int:
    """The owner of a part of a gradient of so many elements that all ranks own: the first rank has the first parts.

    >>> [owner_of_part(Slice(0, 10 * number, 10 * number + 10), 50, 2) for number in range(5)]
    [0, 0, 1, 1, 1]
    """
    return (part.start + part.stop) * ranks // (2 * elements)


class _Links:
    """Until when each rank's link is taken, in either direction (seconds).

    A half sends what its unit has over the owner's link once for each other rank, and over theirs once.
    """

    def __init__(self, ranks: int, cost: CollectiveCost) -> None:
        self._ranks, self._cost = ranks, cost
        self.to, self.of = [-math.inf] * ranks, [-math.inf] * ranks

    def free(self, owner: Optional[int], first: bool) -> float:
        """When the link that a half takes most of is free; without an owner, when all are."""
        if owner is None:
            return max(*self.to, *self.of)
        return (self.to if first else self.of)[owner]

    def take(self, now: float, owner: Optional[int], first: bool, size: int) -> float:
        """Send a unit of so many bytes, or a half of it; when it is over."""
        if owner is None:
            end = now + self._cost.seconds(size)
            self.to[:], self.of[:] = [end] * self._ranks, [end] * self._ranks
            return end
        # A ring sends 2 (N - 1) / N times a unit's bytes over each link.
        seconds = max(self._cost.startup, size / self._cost.rate * self._ranks / 2)
        most, others = (self.to, self.of) if first else (self.of, self.to)
        for rank in range(self._ranks):
            if rank != owner:
                others[rank] = max(now, others[rank]) + seconds / (self._ranks - 1)
        most[owner] = now + seconds
        return most[owner]


class _Half(NamedTuple):
    """A half of a unit, by its number, and its owner. The first in this order goes first, of those with the same owner."""

    place: Tuple[float, float]
    number: int
    unit: int
    owner: Optional[int]
    first: bool


def order_of_halves(units: Sequence[MergedUnit], owner_of: Sequence[Optional[int]], ranks: int, cost: CollectiveCost) -> List[int]:
    """The order in which all ranks start the halves of ``units``, each of this owner. Whenever an owner's link is free, the first half goes
    that was ready first. While no first half is ready, the most urgent second half goes whose first half is over.

    The first half of unit k is k. The second halves, of those that have an owner, have the next numbers in the order of the units. The last
    number stands for the exchange of norms, which comes once all first halves have started.

    >>> late, early = (MergedUnit(urgency, ready, (), 100, 0) for urgency, ready in [(0, 0.2), (1, 0.0)])
    >>> order_of_halves([late, early], [0, 0], 2, CollectiveCost(0.0, 1000.0))
    [1, 3, 0, 4, 2]
    >>> order_of_halves([late, early], [0, None], 2, CollectiveCost(0.0, 200.0))
    [1, 0, 3, 2]
    """
    owned = [unit for unit, owner in enumerate(owner_of) if owner is not None]
    second = {unit: _Half((units[unit].urgency, 0.0), number, unit, owner_of[unit], False) for number, unit in enumerate(owned, len(units))}
    coming = [
        (each.ready, _Half((each.ready, each.urgency), unit, unit, owner, True)) for unit, (each, owner) in enumerate(zip(units, owner_of))
    ]
    heapq.heapify(coming)
    waiting: Dict[Tuple[Optional[int], bool], List[_Half]] = {}  # for the link of an owner
    links = _Links(ranks, cost)
    order: List[int] = []
    left = len(units)  # first halves
    now, norms = -math.inf, math.inf  # the moment, and that of the exchange of norms
    while left or waiting or coming or norms < math.inf:
        if now >= norms:
            order.append(len(units) + len(owned))
            norms = math.inf
        while coming and (coming[0][0] <= now or not left and norms == math.inf):  # once the norms are known, all first halves are over
            half = heapq.heappop(coming)[1]
            heapq.heappush(waiting.setdefault((half.owner, half.first), []), half)
        # A second half takes a part of all other links, too. So none goes while a first half waits for its link.
        allowed = [link for link in waiting if link[1]] or list(waiting)
        usable = [link for link in allowed if links.free(*link) <= now]
        if not usable:
            now = min([*(links.free(*link) for link in allowed), norms, *(moment for moment, _ in coming[:1])], default=now)
            continue
        link = min(usable, key=lambda link: waiting[link][0])
        half = heapq.heappop(waiting[link])
        if not waiting[link]:
            del waiting[link]
        order.append(half.number)
        end = links.take(now, half.owner, half.first, units[half.unit].bytes)
        if half.first:
            left -= 1
            if half.owner is not None:
                heapq.heappush(coming, (end + LATENCY, second[half.unit]))
            if not left:
                norms = max(links.to) + AT_THE_END
    return order
