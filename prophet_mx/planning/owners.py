"""Rounds in two halves: each gradient is summed up on one rank, its *owner*, which tells the sum to the others later. Pure.

The norm of all gradients is needed before the first update of an iteration that clips them. With all-reduces it is known when everything
is transferred. In halves it is known after the first: each owner knows the norms of its own gradients, whole, and tells them to all. So the
second half, as many bytes again, travels beside the next forward. What the link has to spare in backward it uses for second halves as well.

A gradient that is larger than a rank's share would be most of what one link carries. All ranks reduce such a one together, at once.
"""

import heapq
import math
from typing import List, Optional, Sequence, Tuple

from .unit_sizes import CollectiveCost
from .units import MergedUnit

# A unit whose turn it is keeps all others waiting until it is ready. So a second half goes early only if its first half is long over, and
# the ideal link is no faster than a real one, which seldom has something for both directions all the time.
LATENCY = 0.015  # seconds after the first half of a unit until the second may have its turn in backward
BOTH_WAYS = 1.8  # times the rate of all-reduces is that of halves
AT_THE_END = 0.005  # seconds that the link is busy with second halves while the last first halves land


def owners(sizes: Sequence[int], ready: Sequence[float], ranks: int) -> List[Optional[int]]:
    """The owner of each gradient of so many bytes; None if all ranks reduce it. Of all that is ``ready`` (seconds) at any moment, the ranks
    own about as much, so that links are busy in both directions.

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


def order_of_halves(units: Sequence[MergedUnit], owned: Sequence[bool], cost: CollectiveCost) -> List[int]:
    """The order in which all ranks start the halves of ``units``: whenever a link of this cost is free, the most urgent first half that is
    ready goes, and without one, the most urgent second half whose first half is over.

    The first half of unit k is k. The second halves, of the ``owned`` ones, have the next numbers in the order of the units. The last
    number stands for the exchange of norms, which comes once all first halves have started.

    >>> late, early = (MergedUnit(urgency, ready, (), 100, 0) for urgency, ready in [(0, 0.2), (1, 0.0)])
    >>> order_of_halves([late, early], [True, True], CollectiveCost(0.0, 1000.0))
    [1, 3, 0, 4, 2]
    >>> order_of_halves([late, early], [True, False], CollectiveCost(0.0, 200.0))
    [1, 0, 3, 2]
    """
    second = dict(zip((unit for unit, one in enumerate(owned) if one), range(len(units), 2 * len(units))))
    half = cost._replace(rate=BOTH_WAYS * cost.rate)
    coming = sorted(range(len(units)), key=lambda index: units[index].ready, reverse=True)
    ready: List[Tuple[int, int]] = []
    summed: List[Tuple[float, int]] = []  # when the second half of a unit can start
    told: List[Tuple[int, int]] = []
    order: List[int] = []
    clock = -math.inf

    def pass_to(now: float) -> None:
        while coming and units[coming[-1]].ready <= now:
            index = coming.pop()
            heapq.heappush(ready, (units[index].urgency, index))
        while summed and summed[0][0] <= now:
            index = heapq.heappop(summed)[1]
            heapq.heappush(told, (units[index].urgency, index))

    end = math.inf  # of what goes before the exchange of norms
    while coming or ready or (told and clock < end):
        pass_to(clock)
        if ready:
            index = heapq.heappop(ready)[1]
            order.append(index)
            clock += (half if owned[index] else cost).seconds(units[index].bytes)
            if owned[index]:
                heapq.heappush(summed, (clock + LATENCY, index))
            if not coming and not ready:
                end = clock + AT_THE_END
        elif told:
            index = heapq.heappop(told)[1]
            order.append(second.pop(index))
            clock += half.seconds(units[index].bytes)
        else:
            clock = max(clock, min([units[coming[-1]].ready, *(moment for moment, _ in summed[:1])]))
    left = sorted(second, key=lambda index: (units[index].urgency, index))
    return [*order, len(units) + sum(owned), *(second[index] for index in left)]
