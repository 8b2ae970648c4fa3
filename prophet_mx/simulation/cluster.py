"""The cluster that is simulated: its machines, its links, and what messages cost there; and the layout of the job on it: its units, what
one message each carries, in the order on which the workers agree."""

from dataclasses import dataclass, fields
from itertools import count
from typing import List, NamedTuple, Optional, Sequence, Tuple

from ..errors import ConfigError, not_allowed
from ..planning.bound import worker_rate
from ..planning.orders import total_order
from ..planning.placement import BIGARRAY_BOUND, has_chosen_key, most_elements, server_of, service_keys, slice_numbers
from ..planning.unit_sizes import unit_bytes
from ..planning.units import cut, groups
from ..policies import POLICIES
from ..profiling.gradient_profile import GradientProfile
from ..sizes import COPY_BYTES, Traffic, message_bytes

MAX_CLASSES = 8  # of workers, with jitter
# What a message costs where computing was emulated and the network real (seconds): fitted by benchmarks/validate_simulator.py.
MESSAGE_COSTS = {"message_seconds": 130e-6, "server_message_seconds": 65e-6}
PLAIN = "plain"  # the policy of stock MXNet: whole gradients, each sent as it becomes ready
SPREAD = -1  # server of a unit that is split evenly over all servers
ELEMENT_BYTES = 4
HOLD, DROP = "hold", "drop"  # what a host does with more than fits its queue


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
    copy_rate : what a worker's device copies to the host, and at the same time from it (bytes/s); 0: copies take no time.
    copy_chunk : least bytes of one such copy: slices that are smaller are copied together. Copies go by the priority of their gradient,
        values before gradients. 0: a gradient is copied as a whole and, but for values that are not sliced, without priority.
    port_bytes : what each port of the switch can hold (bytes); what comes when it is full is lost, and sent again. 0: links are ideal, and
        nothing is lost.
    hosts : with ports, ``hold`` if hosts hold back what does not fit their queues, as hosts do; ``drop`` if these are like the ports, as on
        links that are policed.
    burst_bytes : with ports, what a queue lets through at once after a rest, besides what it holds, as token buckets do (bytes).

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
    copy_rate: float = 0.0
    copy_chunk: float = COPY_BYTES
    port_bytes: float = 0.0
    hosts: str = HOLD
    burst_bytes: float = 0.0

    def __post_init__(self) -> None:
        if self.hosts not in (HOLD, DROP):
            raise ConfigError(not_allowed(f"hosts={self.hosts!r}", f"{HOLD}, {DROP}"))
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "hosts":
                continue
            low, high, allowed = _RANGES.get(field.name, _COST)
            kinds = int if field.type is int else (int, float)
            if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
                raise ConfigError(not_allowed(f"{field.name}={value!r}", allowed))


MAX_MACHINES = 100000
_COST = (0.0, 1e6, "a number from 0 to 1e6")
_COUNT = (1, MAX_MACHINES, f"a whole number from 1 to {MAX_MACHINES}")
_RANGES = {
    "bandwidth": (1e3, 1e13, "a number from 1e3 to 1e13 (bytes/s)"),
    "workers": _COUNT,
    "servers": _COUNT,
    "jitter": (0.0, 0.99, "a number from 0 to 0.99"),
    "straggler": (1.0, 1e3, "a number from 1 to 1000"),
    "copy_rate": (0.0, 1e13, "a number from 0 to 1e13 (bytes/s)"),
    "copy_chunk": (0.0, 1e13, "a number from 0 to 1e13 (bytes)"),
    "port_bytes": (0.0, 1e13, "a number from 0 to 1e13 (bytes)"),
    "burst_bytes": (0.0, 1e13, "a number from 0 to 1e13 (bytes)"),
}


def connection_rate(cluster: Cluster) -> float:
    """Bytes/s of one connection when all carry the same, which is what ScheduledKVStore measures at the start."""
    return worker_rate(cluster.bandwidth, cluster.workers, cluster.servers) / cluster.servers


def message_time(cluster: Cluster) -> float:
    """Seconds that a message takes a worker when all send as many as they can: what ScheduledKVStore measures at the start."""
    return max(cluster.message_seconds, cluster.server_message_seconds * cluster.workers / cluster.servers)


def worker_classes(cluster: Cluster, collapse: bool = True) -> List[Tuple[int, float]]:
    """(number of workers, their factor of the compute times) for each class of workers that is simulated once."""
    stragglers = [(1, float(cluster.straggler))] if cluster.straggler != 1 else []
    rest = cluster.workers - len(stragglers)
    if not rest:
        return stragglers
    classes = rest if not collapse else min(rest, MAX_CLASSES - len(stragglers)) if cluster.jitter else 1
    return stragglers + [(rest // classes + (index < rest % classes), 1.0) for index in range(classes)]


class Unit(NamedTuple):
    """What one message carries: ``bytes`` of gradient ``gradient`` (index in forward order) for server ``server`` (from 0), or
    :data:`SPREAD`. In a group these are the bytes of all ``members``, each (gradient, bytes), of which ``gradient`` is the most urgent."""

    gradient: int
    bytes: int
    server: int
    members: Tuple[Tuple[int, int], ...] = ()

    def gradients(self) -> Tuple[Tuple[int, int], ...]:
        """Each gradient that it carries, with the bytes of it."""
        return self.members or ((self.gradient, self.bytes),)


def make_units(
    profile: GradientProfile,
    servers: int,
    unit: int = 0,
    bigarray: int = BIGARRAY_BOUND,
    element_bytes: int = ELEMENT_BYTES,
    grouped: bool = False,
    message: int = 0,
) -> List[Unit]:
    """The units that ScheduledKVStore makes for slices of about ``unit`` bytes (0: whole gradients), most urgent first. ``grouped``: small
    gradients share messages. ``message``: what each counts on its server besides its bytes.

    A gradient that stays whole is spread from ``bigarray`` elements on; ``element_bytes`` is 2 for a job in half precision. The others are
    where MXNet places the numbers of their keys: those of small gradients are their indices, the others are chosen (see
    :mod:`prophet_mx.planning.placement`).
    """
    sizes: List[List[int]] = []  # bytes of the units of each gradient
    chosen: List[bool] = []  # for each gradient whether its keys are
    kinds: List[Optional[int]] = []  # None: it shares no message
    for gradient in profile.gradients:
        parts = cut(max(1, gradient.bytes // element_bytes), element_bytes, unit, most_elements(servers, bigarray))
        own = [(part.stop - part.start) * element_bytes for part in parts]
        own[-1] += gradient.bytes - sum(own)
        sizes.append(own)
        spread = servers > 1 and own[0] >= bigarray * element_bytes
        chosen.append(has_chosen_key(gradient.bytes, len(own), unit, servers, spread))
        kinds.append(None if chosen[-1] or spread else 0)
    total = [sum(own) for own in sizes]
    shared = groups(total, kinds, range(len(total)), unit, most_elements(servers, bigarray)) if grouped and unit else []
    group_of = {member: members for members in shared for member in members}

    def place(number: int, size: int) -> int:
        server = None if servers > 1 and size >= bigarray * element_bytes else server_of(number, servers)
        return SPREAD if server is None else server

    loads = [0] * servers
    for number, own in enumerate(sizes):
        server = place(number, own[0])
        if not chosen[number] and server != SPREAD and number not in group_of:
            loads[server] += own[0] + message
    units = []
    for index, own in enumerate(sizes):
        members = group_of.get(index)
        if members is None:
            units += [Unit(index, size, SPREAD) for size in own]
        elif members[0] == index:
            units.append(
                Unit(index, sum(total[member] for member in members), SPREAD, tuple((member, total[member]) for member in members))
            )
    wanted = [unit.bytes for unit in units if unit.members or chosen[unit.gradient]]
    numbers = iter(slice_numbers(wanted, loads, count(len(sizes) + service_keys(servers)), message))
    return [
        unit._replace(server=place(next(numbers) if unit.members or chosen[unit.gradient] else unit.gradient, unit.bytes)) for unit in units
    ]


def in_total_order(units: Sequence[Unit], profile: GradientProfile, rate: float) -> List[Unit]:
    """The units, given most urgent first, in the order on which ScheduledKVStore's workers agree; ``rate`` is one worker's (bytes/s)."""
    ready = profile.ready_times()
    order = total_order([ready[unit.gradient] for unit in units], [unit.bytes for unit in units], rate)
    return [units[place] for place in order]


def default_units(profile: GradientProfile, cluster: Cluster, policy: str, bigarray: int = BIGARRAY_BOUND) -> List[Unit]:
    """What ScheduledKVStore settles on by itself for a policy: the units of :mod:`prophet_mx.planning.units` in their total order.
    Whole gradients for ``plain``. ``bigarray`` is MXNet's MXNET_KVSTORE_BIGARRAY_BOUND."""
    rate = connection_rate(cluster)
    sizes = [gradient.bytes for gradient in profile.gradients]
    grouped = policy != PLAIN and POLICIES[policy].groups
    traffic = Traffic(sizes, rate, message_time(cluster), cluster.workers, cluster.servers, grouped)
    unit = 0 if policy == PLAIN else unit_bytes(policy, traffic)
    message = message_bytes(rate, message_time(cluster), cluster.servers)
    units = make_units(profile, cluster.servers, unit, bigarray, grouped=grouped, message=message)
    return in_total_order(units, profile, rate * cluster.servers)


def busiest_share(units: Sequence[Unit], servers: int) -> float:
    """Bytes of the server that has most of these units / mean bytes of a server."""
    loads = [0.0] * servers
    for unit in units:
        if unit.server != SPREAD:
            loads[unit.server] += unit.bytes
    everywhere = sum(unit.bytes for unit in units if unit.server == SPREAD)
    return (max(loads) * servers + everywhere) / (sum(loads) + everywhere)


def check_units(units: Sequence[Unit], profile: GradientProfile, servers: int) -> None:
    """ConfigError unless these units carry every gradient once, to servers that there are."""
    total = [0] * len(profile.gradients)
    for unit in units:
        if not 0 <= unit.gradient < len(total) or unit.bytes < 1 or (unit.server != SPREAD and not 0 <= unit.server < servers):
            raise ConfigError(not_allowed(str(unit), f"a gradient below {len(total)}, bytes from 1, a server below {servers} or SPREAD"))
        for carried, size in unit.gradients():
            total[carried] += size
    for index, gradient in enumerate(profile.gradients):
        if total[index] != gradient.bytes:
            raise ConfigError(f"the units of gradient {gradient.name!r} carry {total[index]} bytes; allowed: {gradient.bytes}, its size")
