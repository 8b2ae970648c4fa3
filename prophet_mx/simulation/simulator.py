"""Simulates a training job to answer "what would it do for mine?": the shipping scheduler core in a modelled cluster.

    >>> from prophet_mx.profiling.profile import Gradient, GradientProfile
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
jitter there are at most :data:`MAX_CLASSES` classes of workers, each as slow in every iteration as the slowest of its members.
Servers that hold nothing but their share of spread arrays are simulated once, too.
"""
import math
import statistics
from dataclasses import dataclass, fields
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..errors import ConfigError
from ..planning.bound import lower_bound, worker_rate
from ..planning.orders import total_order
from ..planning.partition import cut, unit_bytes
from ..profiling.profile import GradientProfile
from .event_loop import PLAIN, Simulation
from .worker import Timeline

__all__ = ["Cluster", "MAX_CLASSES", "POLICIES", "Result", "SPREAD", "Timeline", "Unit", "WorkerResult",
           "default_units", "in_total_order", "make_units", "simulate"]

POLICIES = (PLAIN, "fifo", "priority", "prophet", "credit", "prophet-icpp21")
MAX_CLASSES = 8             # of workers, with jitter
SPREAD = -1                 # server of a unit that is split evenly over all servers
BIGARRAY_ELEMENTS = 10**6   # MXNET_KVSTORE_BIGARRAY_BOUND: larger arrays are split
ELEMENT_BYTES = 4


class Unit(NamedTuple):
    """What one message carries: ``bytes`` of gradient ``gradient`` (index in forward order) for server ``server`` (from 0), or
    :data:`SPREAD`."""

    gradient: int
    bytes: int
    server: int


def server_of(key: int, servers: int) -> int:
    """The server on which MXNet places key number ``key``."""
    return key * 9973 % servers


def make_units(profile: GradientProfile, servers: int, unit: int = 0, bigarray: int = BIGARRAY_ELEMENTS) -> List[Unit]:
    """The units that ScheduledKVStore makes for slices of about ``unit`` bytes (0: whole gradients), most urgent first.

    Slices have keys of their own, numbered after the gradients' and one more. A unit of ``bigarray`` elements (of 4 bytes) or
    more is spread.
    """
    units: List[Unit] = []
    key = len(profile.gradients) + 1
    for index, gradient in enumerate(profile.gradients):
        elements = max(1, gradient.bytes // ELEMENT_BYTES)
        ends = [part.stop * ELEMENT_BYTES for part in cut(elements, ELEMENT_BYTES, unit)]
        ends[-1] = gradient.bytes
        keys = range(key, key + len(ends)) if len(ends) > 1 else [index]
        key += len(ends) if len(ends) > 1 else 0
        units.extend(Unit(index, end - start, SPREAD if servers > 1 and end - start >= bigarray * ELEMENT_BYTES
                          else server_of(number, servers)) for number, start, end in zip(keys, [0, *ends], ends))
    return units


def in_total_order(units: Sequence[Unit], profile: GradientProfile, rate: float) -> List[Unit]:
    """The units, given most urgent first, in the order on which ScheduledKVStore's workers agree; ``rate`` is one worker's (bytes/s)."""
    ready = profile.ready_times()
    order = total_order([ready[unit.gradient] for unit in units], [unit.bytes for unit in units], rate)
    return [units[place] for place in order]


def default_units(profile: GradientProfile, cluster: "Cluster", policy: str,
                  bigarray: int = BIGARRAY_ELEMENTS) -> List[Unit]:
    """What ScheduledKVStore settles on by itself for a policy: the units of :mod:`prophet_mx.planning.partition` in their total order.
    Whole gradients for ``plain``. ``bigarray`` is MXNet's MXNET_KVSTORE_BIGARRAY_BOUND."""
    rate = connection_rate(cluster)
    unit = 0 if policy == PLAIN else unit_bytes(policy, rate, profile.total_bytes // cluster.servers, None, cluster.workers)
    units = make_units(profile, cluster.servers, unit, bigarray)
    return in_total_order(units, profile, rate * cluster.servers)


def connection_rate(cluster: "Cluster") -> float:
    """Bytes/s of one connection when all carry the same, which is what ScheduledKVStore measures at the start."""
    return worker_rate(cluster.bandwidth, cluster.workers, cluster.servers) / cluster.servers


@dataclass(frozen=True)
class Cluster:
    """The machines and what they cost; the costs are 0 unless given.

    Attributes
    ----------
    bandwidth : goodput of every link, each way (bytes/s).
    workers, servers : how many; a worker and a server on one machine count as two machines.
    rtt : time from the departure of a byte to the arrival of its acknowledgement on an idle network (seconds).
    message_bytes : what a message costs on the wire besides its payload (bytes).
    message_seconds : time a worker's sending thread takes for a message, and its receiving thread for an answer (seconds).
    server_message_seconds, server_byte_seconds : time a server takes for each worker's message, one after the other (seconds,
        seconds/byte).
    jitter : in each iteration a worker's compute times are multiplied by a factor drawn evenly from 1 - jitter to 1 + jitter.
    straggler : factor of the compute times of one worker.

    Raises
    ------
    ConfigError
        a value is not allowed.
    """

    bandwidth: float
    workers: int = 2
    servers: int = 1
    rtt: float = 0.0
    message_bytes: float = 0.0
    message_seconds: float = 0.0
    server_message_seconds: float = 0.0
    server_byte_seconds: float = 0.0
    jitter: float = 0.0
    straggler: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            low, high, allowed = _RANGES.get(field.name, _COST)
            kinds = int if field.type is int else (int, float)
            if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
                raise ConfigError(f"{field.name}={value!r} is not allowed; allowed: {allowed}")


MAX_MACHINES = 100000
_COST = (0.0, 1e6, "a number from 0 to 1e6")
_COUNT = (1, MAX_MACHINES, f"a whole number from 1 to {MAX_MACHINES}")
_RANGES = {
    "bandwidth": (1e3, 1e13, "a number from 1e3 to 1e13 (bytes/s)"),
    "workers": _COUNT,
    "servers": _COUNT,
    "jitter": (0.0, 0.99, "a number from 0 to 0.99"),
    "straggler": (1.0, 1e3, "a number from 1 to 1000"),
}


@dataclass(frozen=True)
class WorkerResult:
    """One class of workers.

    Attributes
    ----------
    count : how many workers it stands for.
    iterations : time of each measured iteration (seconds).
    timeline : the last measured iteration.
    """

    count: int
    iterations: Tuple[float, ...]
    timeline: Timeline

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
    bound : no schedule takes less time per iteration with the same compute times (seconds); see :mod:`prophet_mx.planning.bound`.
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


def simulate(profile: GradientProfile, cluster: Cluster, policy: str = "prophet", units: Optional[Sequence[Unit]] = None, *,
             iterations: int = 10, warmup: int = 5, seed: int = 0, collapse: bool = True, window: int = 0,
             lead: int = 0) -> Result:
    """Simulate a job in steady state.

    Parameters
    ----------
    profile : sizes, compute times and steps of the gradients.
    policy : ``plain`` is stock MXNet: every unit goes into its connection's queue as it becomes ready. The others are those of
        the scheduler core.
    units : in the total order that the workers share (see _ext/scheduler.pyx); None for :func:`default_units`.
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
    if policy not in POLICIES:
        raise ConfigError(f"policy={policy!r} is not allowed; allowed: {', '.join(POLICIES)}")
    for name, value, low in (("iterations", iterations, 1), ("warmup", warmup, 0), ("window", window, 0), ("lead", lead, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise ConfigError(f"{name}={value!r} is not allowed; allowed: a whole number from {low}")
    units = tuple(default_units(profile, cluster, policy) if units is None else units)
    _check_units(units, profile, cluster.servers)
    simulation = Simulation(profile, cluster, policy, units, worker_classes(cluster, collapse), iterations + warmup, seed,
                            window, lead, connection_rate(cluster))
    simulation.run()
    workers = []
    for worker in simulation.workers:
        starts = worker.starts[warmup:]
        workers.append(WorkerResult(worker.count, tuple(b - a for a, b in zip(starts, starts[1:])), worker.timeline()))
    seconds = max(math.fsum(worker.iterations) / iterations for worker in workers)
    factors = [worker.factors[warmup:] for worker in simulation.workers]
    return Result(policy, cluster, units, seconds, _bound(profile, cluster, factors), tuple(workers))


def worker_classes(cluster: Cluster, collapse: bool = True) -> List[Tuple[int, float]]:
    """(number of workers, their factor of the compute times) for each class of workers that is simulated once."""
    stragglers = [(1, float(cluster.straggler))] if cluster.straggler != 1 else []
    rest = cluster.workers - len(stragglers)
    if not rest:
        return stragglers
    classes = rest if not collapse else min(rest, MAX_CLASSES - len(stragglers)) if cluster.jitter else 1
    return stragglers + [(rest // classes + (index < rest % classes), 1.0) for index in range(classes)]


def _check_units(units: Sequence[Unit], profile: GradientProfile, servers: int) -> None:
    total = [0] * len(profile.gradients)
    for unit in units:
        if (not 0 <= unit.gradient < len(total) or unit.bytes < 1
                or (unit.server != SPREAD and not 0 <= unit.server < servers)):
            raise ConfigError(f"{unit} is not allowed; allowed: a gradient below {len(total)}, bytes from 1, "
                              f"a server below {servers} or SPREAD")
        total[unit.gradient] += unit.bytes
    for index, gradient in enumerate(profile.gradients):
        if total[index] != gradient.bytes:
            raise ConfigError(f"the units of gradient {gradient.name!r} carry {total[index]} bytes; allowed: {gradient.bytes}, "
                              "its size")


def _bound(profile: GradientProfile, cluster: Cluster, factors: Sequence[Sequence[float]]) -> float:
    """Mean over the iterations of the least time; ``factors`` are those of the compute times, per worker and iteration.

    Two bounds hold, and so does the larger. All workers' bytes pass the servers' links, no earlier than if all workers were as
    fast as the fastest of that iteration: then all share evenly. And each worker's own bytes pass its own link. Both add up
    over iterations: the first from the earliest start of a backward to the next earliest, the second from start to start of
    one worker.
    """
    known: Dict[Tuple[float, float], float] = {}

    def least(factor: float, rate: float) -> float:
        if (factor, rate) not in known:
            compute = profile.compute_seconds
            scaled = profile.scaled(compute=compute * factor) if compute and factor != 1 else profile
            known[factor, rate] = lower_bound(scaled, rate)
        return known[factor, rate]

    shared = worker_rate(cluster.bandwidth, cluster.workers, cluster.servers)
    together = [least(min(of_all), shared) for of_all in zip(*factors)]
    alone = [[least(factor, cluster.bandwidth) for factor in own] for own in factors]
    return max(math.fsum(times) / len(times) for times in [together, *alone])
