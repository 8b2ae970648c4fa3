"""The two orders of a job's units, from its profile. Pure.

*Urgency* says which of two ready units leaves first: the one that the next forward pass needs first. The caller's order of keys is not
always the forward order (``gluon.Trainer`` sorts parameters by name), but backward runs forward's layers in reverse, so that what
becomes ready in a later step is needed earlier.

The lead limit follows the *total order*, the same on all workers: the order in which an ideal link would finish the units, one
that is somewhat faster than the worker's. What is urgent passes the lead limit without it; it says what may go ahead of that.
"""

from typing import Dict, List, NamedTuple, Sequence, Tuple

from .bound import finishing_order

AHEAD = 1.15  # times the worker's rate is the ideal link's: ten simulated jobs of 2 to 8 workers did best from 1.1 to 1.25
NEVER = 1e9  # ready time of a gradient that is not in the profile: after all others (seconds)


class Orders(NamedTuple):
    """By unit: its rank (0 is the most urgent) and its position in the total order."""

    ranks: List[int]
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


def total_order(ready: Sequence[float], sizes: Sequence[int], rate: float) -> List[int]:
    """The total order of units that are given most urgent first, by when each becomes ready (seconds) and its bytes. ``rate`` is what the
    worker sends to all servers (bytes/s)."""
    return finishing_order(ready, [max(1, size) / (AHEAD * rate) for size in sizes])


def orders(units: Sequence[Tuple[int, int]], ready: Dict[int, float], steps: Sequence[Sequence[int]], rate: float) -> Orders:
    """The orders of ``units``, each (gradient, bytes), the units of one gradient being in the order of its slices.

    ``ready`` is by gradient (seconds after the iteration's first ready one), ``rate`` what the worker sends to all servers in bytes/s.
    """
    urgency = {gradient: place for place, gradient in enumerate(forward_order(ready, steps))}
    last = len(urgency)
    by_rank = sorted(range(len(units)), key=lambda unit: (urgency.get(units[unit][0], last + units[unit][0]), unit))
    finished = total_order([ready.get(units[unit][0], NEVER) for unit in by_rank], [units[unit][1] for unit in by_rank], rate)
    ranks, positions = [0] * len(units), [0] * len(units)
    for rank, unit in enumerate(by_rank):
        ranks[unit] = rank
    for position, rank in enumerate(finished):
        positions[by_rank[rank]] = position
    return Orders(ranks, positions)


def differ(one: Orders, other: Orders) -> bool:
    """Whether a unit is in places so far apart, over a twentieth of all, that it matters which of the two orders is used."""
    apart = len(one.ranks) / 20
    return any(abs(a - b) > apart for ours, theirs in zip(one, other) for a, b in zip(ours, theirs))
