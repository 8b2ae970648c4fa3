"""The layout of a simulated job: the units, what one message each carries, in the order on which the workers agree."""

from typing import List, NamedTuple, Sequence

from ..errors import ConfigError
from ..planning.orders import total_order
from ..planning.partition import cut, unit_bytes
from ..planning.placement import BIGARRAY_BOUND, FACTOR
from ..profiling.gradient_profile import GradientProfile
from ..sizes import Traffic
from .cluster import Cluster, connection_rate, message_time

PLAIN = "plain"  # the policy of stock MXNet: whole gradients, each sent as it becomes ready
SPREAD = -1  # server of a unit that is split evenly over all servers
ELEMENT_BYTES = 4


class Unit(NamedTuple):
    """What one message carries: ``bytes`` of gradient ``gradient`` (index in forward order) for server ``server`` (from 0), or
    :data:`SPREAD`."""

    gradient: int
    bytes: int
    server: int


def server_of(key: int, servers: int) -> int:
    """The server on which MXNet places key number ``key``."""
    return key * FACTOR % servers


def make_units(profile: GradientProfile, servers: int, unit: int = 0, bigarray: int = BIGARRAY_BOUND) -> List[Unit]:
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
        units.extend(
            Unit(index, end - start, SPREAD if servers > 1 and end - start >= bigarray * ELEMENT_BYTES else server_of(number, servers))
            for number, start, end in zip(keys, [0, *ends], ends)
        )
    return units


def in_total_order(units: Sequence[Unit], profile: GradientProfile, rate: float) -> List[Unit]:
    """The units, given most urgent first, in the order on which ScheduledKVStore's workers agree; ``rate`` is one worker's (bytes/s)."""
    ready = profile.ready_times()
    order = total_order([ready[unit.gradient] for unit in units], [unit.bytes for unit in units], rate)
    return [units[place] for place in order]


def default_units(profile: GradientProfile, cluster: Cluster, policy: str, bigarray: int = BIGARRAY_BOUND) -> List[Unit]:
    """What ScheduledKVStore settles on by itself for a policy: the units of :mod:`prophet_mx.planning.partition` in their total order.
    Whole gradients for ``plain``. ``bigarray`` is MXNet's MXNET_KVSTORE_BIGARRAY_BOUND."""
    rate = connection_rate(cluster)
    sizes = [gradient.bytes for gradient in profile.gradients]
    traffic = Traffic(sizes, rate, message_time(cluster), cluster.workers, cluster.servers)
    unit = 0 if policy == PLAIN else unit_bytes(policy, traffic)
    units = make_units(profile, cluster.servers, unit, bigarray)
    return in_total_order(units, profile, rate * cluster.servers)


def check_units(units: Sequence[Unit], profile: GradientProfile, servers: int) -> None:
    """ConfigError unless these units carry every gradient once, to servers that there are."""
    total = [0] * len(profile.gradients)
    for unit in units:
        if not 0 <= unit.gradient < len(total) or unit.bytes < 1 or (unit.server != SPREAD and not 0 <= unit.server < servers):
            raise ConfigError(
                f"{unit} is not allowed; allowed: a gradient below {len(total)}, bytes from 1, a server below {servers} or SPREAD"
            )
        total[unit.gradient] += unit.bytes
    for index, gradient in enumerate(profile.gradients):
        if total[index] != gradient.bytes:
            raise ConfigError(f"the units of gradient {gradient.name!r} carry {total[index]} bytes; allowed: {gradient.bytes}, its size")
