"""What all-reduce would give: the time of an iteration with PyTorch's DistributedDataParallel and with ScheduledOptimizer.

A model of one rank, as all are alike. Its link carries one collective after the other, each for a start-up or for its bytes' time
(:class:`~prophet_mx.planning.unit_sizes.CollectiveCost`). Gradients are ready operation by operation, or in steps. With ScheduledOptimizer
the next forward begins a layer as soon as its own gradients are reduced; else nothing of two iterations overlaps. The units and their
order are those that a job would have (:mod:`prophet_mx.planning.rounds`). Updates take no time.
"""

import math
from dataclasses import dataclass, replace
from typing import Dict, List, Sequence

from ..planning.bound import communication_seconds, lower_bound, ring_rate
from ..planning.rounds import Parameter, RoundPlanner
from ..planning.unit_sizes import CollectiveCost
from ..profiling.gradient_profile import GradientProfile

__all__ = ["BUCKETS", "DDP", "SCHEDULED", "RingPrediction", "predict_ring"]

DDP, SCHEDULED = "ddp", "scheduled"
BUCKETS = (25, 8, 4, 2, 1)  # MiB of DistributedDataParallel's buckets; the first is its default
FIRST_BUCKET = 2**20  # bytes: its default for the first bucket, so that communication begins early
STARTUP = 0.0008  # seconds of a collective at least, with gloo over TCP where it was measured
ELEMENT_BYTES = 4


@dataclass(frozen=True)
class RingPrediction:
    """Times are seconds per iteration: ``compute``, ``communication`` of all bytes, the ``bound`` that no order of sending beats, and the
    ``seconds`` of each method: :data:`DDP`, ``ddp, 8 MB buckets`` and so on, :data:`SCHEDULED`."""

    compute: float
    communication: float
    bound: float
    seconds: Dict[str, float]

    @property
    def rho(self) -> float:
        """Communication time / compute time."""
        return self.communication / self.compute

    @property
    def best_ddp(self) -> str:
        """DistributedDataParallel with the buckets that suit it best; with its own if others hardly help."""
        best = min((name for name in self.seconds if name != SCHEDULED), key=self.seconds.__getitem__)
        return DDP if self.seconds[DDP] <= 1.02 * self.seconds[best] else best


def predict_ring(profile: GradientProfile, rate: float, ranks: int, startup: float = STARTUP, in_steps: bool = False) -> RingPrediction:
    """Predict all methods.

    Parameters
    ----------
    profile : with compute times.
    rate : what TCP carries over every rank's link, each way (bytes/s).
    startup : of a collective (seconds).
    in_steps : gradients are ready in the profile's steps, as those of compiled parts are; else operation by operation.

    Raises
    ------
    ProfileError
        the profile lacks compute times.
    ConfigError
        the rate or the number of ranks is not allowed.

    >>> from prophet_mx.profiling.gradient_profile import Gradient
    >>> layers = [Gradient(name, 10**6, forward=0.01, backward=0.02) for name in ("first", "last")]
    >>> found = predict_ring(GradientProfile("two layers", layers, [[1], [0]]), 1e8, ranks=2)
    >>> {name: round(seconds, 3) for name, seconds in found.seconds.items() if "," not in name}
    {'ddp': 0.08, 'scheduled': 0.07}
    """
    profile = profile if in_steps else by_operation(profile)
    cost = CollectiveCost(startup, ring_rate(rate, ranks))
    seconds = {DDP: _with_ddp(profile, cost, BUCKETS[0])}
    seconds.update({f"{DDP}, {size} MB buckets": _with_ddp(profile, cost, size) for size in BUCKETS[1:]})
    seconds[SCHEDULED] = _scheduled(profile, cost)
    return RingPrediction(profile.compute_seconds, communication_seconds(profile, cost.rate), lower_bound(profile, cost.rate), seconds)


def by_operation(profile: GradientProfile) -> GradientProfile:
    """The profile as PyTorch has it: each operation's gradients are ready at the end of its own backward. Its compute time is that of its
    last gradient."""
    operations: List[List[int]] = [[]]
    for index, (_, backward) in enumerate(profile.compute_times()):
        operations[-1].append(index)
        if backward > 0:
            operations.append([])
    steps = tuple(tuple(members) for members in reversed(operations) if members)
    return replace(profile, steps=steps, gradients=tuple(replace(gradient, ready=None) for gradient in profile.gradients))


def _with_ddp(profile: GradientProfile, cost: CollectiveCost, megabytes: int) -> float:
    """Forward begins when all buckets are reduced, which start in the order in which they are filled."""
    ready = profile.backward_ready_times()
    buckets: List[List[int]] = [[]]
    for index in reversed(range(len(ready))):
        limit = min(FIRST_BUCKET, megabytes << 20) if len(buckets) == 1 else megabytes << 20
        if buckets[-1] and sum(profile.gradients[member].bytes for member in buckets[-1]) >= limit:
            buckets.append([])
        buckets[-1].append(index)
    sizes = [sum(profile.gradients[member].bytes for member in bucket) for bucket in buckets]
    ends = _reduced([max(ready[member] for member in bucket) for bucket in buckets], sizes, cost)
    times = profile.compute_times()
    return max(math.fsum(backward for _, backward in times), ends[-1]) + math.fsum(forward for forward, _ in times)


def _scheduled(profile: GradientProfile, cost: CollectiveCost) -> float:
    """Forward begins each layer when the units of its gradients are reduced."""
    parameters = [Parameter(each.name, each.bytes, ELEMENT_BYTES, None) for each in profile.gradients]
    plan = RoundPlanner(parameters, None).plan(profile, cost)
    ready = profile.backward_ready_times()
    units = [plan.units[place] for place in plan.order]
    ends = _reduced([max(ready[part.gradient] for part in unit.slices) for unit in units], [unit.bytes for unit in units], cost)
    there = [0.0] * len(ready)
    for unit, end in zip(units, ends):
        for part in unit.slices:
            there[part.gradient] = max(there[part.gradient], end)
    clock = sum(backward for _, backward in profile.compute_times())
    for (forward, _), arrival in zip(profile.compute_times(), there):
        clock = max(clock, arrival) + forward
    return clock


def _reduced(ready: Sequence[float], sizes: Sequence[int], cost: CollectiveCost) -> List[float]:
    """When each collective is done, of those that are started in this order."""
    ends, clock = [], 0.0
    for moment, size in zip(ready, sizes):
        clock = max(clock, moment) + cost.seconds(size)
        ends.append(clock)
    return ends
