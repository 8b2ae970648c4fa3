"""A switch whose ports have finite queues: the network of a simulated cluster where :attr:`Cluster.port_bytes` is given.

Every machine has a host queue, and the switch has a port to it. Both send at the rate of the links. A chunk waits in the host queue of its
sender, then in the port to its receiver. All workers share the port to a server, and all servers share the port to a worker.

Hosts that ``hold`` take whatever TCP gives them. Hosts that ``drop`` have queues like those of the ports, and refuse what exceeds them.

Acknowledgements take no room, but wait behind the bytes in the queues on their way.

Left out: packets that are smaller than a chunk, ports that share a buffer, links between switches, pause frames, and marks (ECN).
"""

import math
from functools import partial
from typing import Callable, List, Sequence, Tuple

from .cluster import HOLD, Cluster
from .fluid import Message
from .queues import Queue, chunk_bytes
from .tcp import Connection, Path


class Never:
    """Shares of links that nothing uses: chunks are events of the simulation instead."""

    next = math.inf


class Direction:
    """The connections of one direction, by their keys; it stands in for :class:`~prophet_mx.simulation.fluid.Network`."""

    def __init__(self, connections: Sequence[Connection]) -> None:
        self.shares = Never()
        self.connections = connections

    def send(self, key: int, message: Message, t: float) -> None:
        """Put a message at the end of a connection's stream."""
        self.connections[key].send(message, t)

    def arrived(self, t: float) -> List[Tuple[int, Message]]:
        """Nothing: connections tell by themselves."""
        return []


class ReceiptMeter:
    """What a sender's kernel reports as acknowledged on one connection; as :class:`~prophet_mx.simulation.fluid.DrainMeter`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.released = 0

    def left(self, message: Message) -> None:
        """Nothing: the connection knows."""

    def drained(self, t: float) -> int:
        """Payload bytes acknowledged in all."""
        return self._connection.drained()


Call = Callable[[int, Message, float], None]


def switched(cluster: Cluster, servers: int, at: Callable[..., None], up: Call, down: Call) -> Tuple[Direction, Direction]:
    """Requests and answers between all workers and ``servers`` servers over one switch; a connection's key is worker * servers + server.
    ``at`` is as in :class:`~prophet_mx.simulation.tcp.Connection`; ``up`` and ``down`` are called with key, message and time of arrival."""
    room, burst, rate = cluster.port_bytes, cluster.burst_bytes, cluster.bandwidth
    chunk = chunk_bytes(room)

    def machines(count: int) -> List[Tuple[Queue, Queue]]:
        host = math.inf if cluster.hosts == HOLD else room
        return [(Queue(rate, host, burst), Queue(rate, room, burst)) for _ in range(count)]

    own, theirs = machines(cluster.workers), machines(servers)
    ways: Tuple[List[Connection], List[Connection]] = ([], [])
    for key in range(cluster.workers * servers):
        worker, server = own[key // servers], theirs[key % servers]
        for connections, (sender, receiver), call in ((ways[0], (worker, server), up), (ways[1], (server, worker), down)):
            path = Path(sender[0], receiver[1], (receiver[0], sender[1]), chunk, cluster.rtt)
            connections.append(Connection(path, at, partial(call, key)))
    return Direction(ways[0]), Direction(ways[1])
