"""Simulates a training job to answer "what would it do for mine?": the shipping scheduler core in a modelled cluster.

    >>> from prophet_mx.profiling.gradient_profile import Gradient, GradientProfile
    >>> profile = GradientProfile("one layer", [Gradient("weight", 10**6, forward=0.01, backward=0.02)], [[0]])
    >>> result = simulate(profile, Cluster(bandwidth=1e8, workers=4, servers=1), "prophet")
    >>> round(result.seconds, 6), round(result.bound, 6)
    (0.074, 0.07)

The training loop: backward makes gradients ready in the profile's steps; the next forward runs layer by layer, each waiting
for its parameters; then the next backward. Iterations are counted from one start of backward to the next.

The cluster (:class:`Cluster`): every worker and every server has one full-duplex link of the same rate, shared max-min fairly
by its connections (:mod:`prophet_mx.simulation.fluid`). A unit is one message to its server, which answers all workers once it has handled
the messages of all; the answer carries as many bytes. So even alone on the network a unit takes twice its time on the wire,
where the lower bound counts it once.

Workers that behave alike are simulated once. Without jitter those are all but the straggler, and the result is the same; with
jitter there are at most :data:`~prophet_mx.simulation.cluster.MAX_CLASSES` classes of workers, each as slow in every iteration as the
slowest of its members.
Servers that hold nothing but their share of spread arrays are simulated once, too.
"""

import math
import statistics
from dataclasses import dataclass
from typing import Optional, Sequence, Tuple

from .. import policies
from ..errors import ConfigError, need_whole, not_allowed
from ..planning.bound import job_bound, worker_rate
from ..profiling.gradient_profile import GradientProfile
from .cluster import PLAIN, Cluster, Unit, check_units, connection_rate, default_units, worker_classes
from .event_loop import Simulation
from .worker import SimulatedIteration

__all__ = ["POLICIES", "Cluster", "Result", "WorkerResult", "simulate"]

POLICIES = (PLAIN, *policies.POLICIES)


@dataclass(frozen=True)
class WorkerResult:
    """One class of workers.

    Attributes
    ----------
    count : how many workers it stands for.
    iterations : time of each measured iteration (seconds).
    last : the last measured iteration.
    """

    count: int
    iterations: Tuple[float, ...]
    last: SimulatedIteration

    @property
    def seconds(self) -> float:
        """Median iteration time."""
        return statistics.median(self.iterations)


@dataclass(frozen=True)
class Result:
    """What a simulation gives.

    Attributes
    ----------
    policy, cluster, units : what was simulated.
    seconds : mean time per iteration of the slowest worker in steady state; ``workers`` has each worker's own, and its median.
    bound : no schedule takes less time per iteration with the same compute times, and with small gradients on the servers where they
        are (seconds); see :mod:`prophet_mx.planning.bound`.
    workers : one entry per class; the straggler, if there is one, comes first.
    """

    policy: str
    cluster: Cluster
    units: Tuple[Unit, ...]
    seconds: float
    bound: float
    workers: Tuple[WorkerResult, ...]

    @property
    def ratio(self) -> float:
        """seconds / bound: at least 1; 1 for a job that takes no time."""
        return self.seconds / self.bound if self.bound else 1.0


def simulate(
    profile: GradientProfile,
    cluster: Cluster,
    policy: str = policies.DEFAULT,
    units: Optional[Sequence[Unit]] = None,
    *,
    iterations: int = 10,
    warmup: int = 5,
    seed: int = 0,
    collapse: bool = True,
    window: int = 0,
    lead: int = 0,
) -> Result:
    """Simulate a job in steady state.

    Parameters
    ----------
    profile : sizes, compute times and steps of the gradients.
    policy : ``plain`` is stock MXNet: every unit goes into its connection's queue as it becomes ready. The others are those of
        the scheduler core.
    units : in the total order that the workers share (see _core/scheduler/decisions.pyx); None for :func:`default_units`.
    iterations, warmup : how many are measured, and how many before them are not; meanwhile the scheduler measures its links.
    seed : of the jitter.
    collapse : simulate workers that behave alike once. False simulates each, in time that grows with at least their square.
    window, lead : the scheduler's limits in bytes; 0 derives them from the links' rates, as it does by default.

    Raises
    ------
    ProfileError
        the profile lacks compute times.
    ConfigError
        a setting or a unit is not allowed.
    SimulationError
        the job comes to a standstill: a fault of the scheduler.
    """
    need_policy(policy)
    for name, value, low in (("iterations", iterations, 1), ("warmup", warmup, 0), ("window", window, 0), ("lead", lead, 0)):
        need_whole(name, value, low)
    units = tuple(default_units(profile, cluster, policy) if units is None else units)
    check_units(units, profile, cluster.servers)
    simulation = Simulation(
        profile,
        cluster,
        policy,
        units,
        worker_classes(cluster, collapse and not cluster.port_bytes),
        iterations + warmup,
        seed,
        window,
        lead,
        connection_rate(cluster),
    )
    simulation.run()
    workers = []
    for worker in simulation.workers:
        starts = worker.starts[warmup:]
        workers.append(WorkerResult(worker.count, tuple(b - a for a, b in zip(starts, starts[1:])), worker.last_iteration()))
    seconds = max(math.fsum(worker.iterations) / iterations for worker in workers)
    factors = [worker.factors[warmup:] for worker in simulation.workers]
    bound = job_bound(profile, cluster.bandwidth, worker_rate(cluster.bandwidth, cluster.workers, cluster.servers), factors)
    return Result(policy, cluster, units, seconds, bound, tuple(workers))


def need_policy(policy: str) -> None:
    """ConfigError if this policy cannot be simulated."""
    if not isinstance(policy, str) or policy != PLAIN and policy not in policies.POLICIES:
        raise ConfigError(not_allowed(f"policy={policy!r}", ", ".join([PLAIN, *policies.POLICIES])))
