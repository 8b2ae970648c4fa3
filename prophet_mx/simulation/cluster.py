"""The cluster that is simulated: its machines, its links, and what messages cost there."""

from dataclasses import dataclass, fields
from typing import List, Tuple

from ..errors import ConfigError, not_allowed
from ..planning.bound import worker_rate
from ..sizes import COPY_BYTES

MAX_CLASSES = 8  # of workers, with jitter


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

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
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
