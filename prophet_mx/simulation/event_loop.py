"""The event loop of the simulator: workers with a scheduler each, servers, and two networks, one each way.

Everything that happens is a call at a time; :meth:`Simulation.run` makes them in order. What happens to a unit at one worker:

    ready      backward has made its gradient, and it is on the host
    released   the scheduler lets it go: into the sending thread, then into its connection's queue
    drained    its last byte is acknowledged
    handled    the server has taken it in; when it has those of all workers, the answers go back
    answered   the answer is back; forward waits until it is on the device
"""

import heapq
import math
from itertools import count
from typing import Any, Callable, List, NamedTuple, Sequence, Set, Tuple, Union

from .._core import POLL_TIMES, Scheduler
from ..errors import SimulationError
from ..profiling.gradient_profile import GradientProfile
from ..sizes import message_bytes
from .cluster import PLAIN, Cluster, Unit, connection_rate, message_time
from .fluid import DrainMeter, EqualShares, MaxMinShares, Message, Network, Shares
from .switch import Direction, ReceiptMeter, switched
from .worker import TO_DEVICE, TO_HOST, Copy, CopyEngines, Worker, plan_copies

# When the scheduler's driver looks at its sockets again while a window holds something back, in seconds. For far-off times the simulator
# looks less often than the driver, which would change nothing.
POLL_MIN, POLL_MAX = POLL_TIMES
POLL_SHARE = 0.25


class Part(NamedTuple):
    """What one unit sends to one class of servers: bytes as the scheduler counts them and on the wire, per server."""

    server: int
    payload: int
    wire: float


class Simulation:
    """A job of ``iterations`` iterations; see :func:`prophet_mx.simulation.simulator.simulate`, which checks the arguments.

    ``classes`` has the number of members and the factor of the compute times of each class of workers; ``rate`` is what the
    scheduler assumes of each link before it has measured it.
    """

    def __init__(
        self,
        profile: GradientProfile,
        cluster: Cluster,
        policy: str,
        units: Sequence[Unit],
        classes: Sequence[Tuple[int, float]],
        iterations: int,
        seed: int,
        window: int,
        lead: int,
        rate: float,
    ) -> None:
        self.cluster = cluster
        self.iterations = iterations
        self.units = units
        self._plan_steps(profile)
        computing = profile.compute_times()
        self.forward = [forward for forward, _ in computing]
        self.backward = math.fsum(backward for _, backward in computing)
        self._plan_servers()
        self.plain = policy == PLAIN
        self.workers = [
            Worker(
                number,
                members,
                slowness,
                seed,
                None if self.plain else self._scheduler(policy, slowness, window, lead, rate),
                len(profile.gradients),
                len(units),
            )
            for number, (members, slowness) in enumerate(classes)
        ]
        self.events: List[Tuple[float, int, Any, Tuple[Any, ...]]] = []  # time, running number, call, arguments
        self.sequence = count()
        self._connect()
        self.server_free = [0.0] * len(self.server_links)
        self.handled = [[0] * len(units) for _ in self.server_links]  # workers whose message is in, per unit
        self.eager: Set[int] = set()  # workers whose scheduler has news and is to decide
        self.running = len(self.workers)

    # -- what stays the same -------------------------------------------------------------------------------------------------

    def _plan_steps(self, profile: GradientProfile) -> None:
        """Copies and time of each step, units and copies per gradient."""
        ready = profile.backward_ready_times()
        self.step_of = [0] * len(ready)
        for number, step in enumerate(profile.steps):
            for index in step:
                self.step_of[index] = number
        self.step_times = [ready[step[0]] for step in profile.steps]
        self.copies = plan_copies(self.units, self.cluster.copy_chunk)
        self.step_copies: List[List[Copy]] = [[] for _ in profile.steps]
        self.copies_of: List[List[int]] = [[] for _ in self.units]  # several of a group
        self.units_per_gradient = [0] * len(ready)
        self.copies_per_gradient = [0] * len(ready)
        for number, copy in enumerate(self.copies):
            self.step_copies[self.step_of[copy.gradient]].append(copy)
            self.units_per_gradient[copy.gradient] += len(copy.units)
            self.copies_per_gradient[copy.gradient] += 1
            for unit in copy.units:
                self.copies_of[unit].append(number)

    def _plan_servers(self) -> None:
        """Classes of servers (the scheduler's links of each), and each unit's parts. Servers that hold only spread units are
        alike; servers that hold nothing are left out."""
        servers, extra = self.cluster.servers, self.cluster.message_bytes
        own = sorted({unit.server for unit in self.units if unit.server >= 0})
        self.server_links = [[server] for server in own]
        spread = any(unit.server < 0 for unit in self.units)
        if spread and self.cluster.port_bytes:  # each has ports of its own
            own = list(range(servers))
            self.server_links = [[server] for server in own]
        elif spread and len(own) < servers:
            self.server_links.append(sorted(set(range(servers)) - set(own)))
        place = {server: number for number, server in enumerate(own)}
        self.parts = [
            [Part(place[unit.server], unit.bytes, unit.bytes + extra)]
            if unit.server >= 0
            else [Part(number, unit.bytes // servers, unit.bytes / servers + extra) for number in range(len(self.server_links))]
            for unit in self.units
        ]

    def _scheduler(self, policy: str, slowness: float, window: int, lead: int, rate: float) -> Scheduler:
        """The core as a worker has it: its units, and the steps of a profile that this worker has learned."""
        scheduler = Scheduler(policy, self.cluster.servers, window, lead, rate)
        order = sorted(range(len(self.units)), key=lambda number: (self.units[number].gradient, number))
        urgency = {number: place for place, number in enumerate(order)}
        for number, unit in enumerate(self.units):
            scheduler.add_unit(unit.bytes, unit.server, unit.gradient, urgency[number], number)
        slices = (unit.bytes for unit in self.units if self.units_per_gradient[unit.gradient] > 1)
        message = message_bytes(connection_rate(self.cluster), message_time(self.cluster), self.cluster.servers)
        scheduler.set_sizes(max(slices, default=0), message)
        first = self.step_times[0]
        scheduler.set_steps(self.step_of, [(time - first) * slowness for time in self.step_times])
        for link in range(self.cluster.servers):
            scheduler.set_link(link, rtt=self.cluster.rtt)
        return scheduler

    def _connect(self) -> None:
        """The networks, and what workers see of them."""
        self.up: Union[Network, Direction]
        self.down: Union[Network, Direction]
        meters: Sequence[Sequence[Union[DrainMeter, ReceiptMeter]]]
        keys = [[self._key(worker.number, server) for server in range(len(self.server_links))] for worker in self.workers]
        if self.cluster.port_bytes:
            self.up, self.down = up, _ = switched(self.cluster, len(self.server_links), self._later, self._requested, self._responded)
            meters = [[ReceiptMeter(up.connections[key]) for key in own] for own in keys]
        else:
            self.up, self.down = network, _ = self._network(), self._network()
            meters = [[DrainMeter(network, key, self.cluster.rtt) for key in own] for own in keys]
        for worker, own in zip(self.workers, meters):
            worker.copies = CopyEngines(self.cluster.copy_rate)
            worker.meters = list(own)

    def _network(self) -> Network:
        members = [worker.count for worker in self.workers]
        servers = [len(links) for links in self.server_links]
        rate = self.cluster.bandwidth
        shares: Shares = EqualShares(rate / members[0], rate, servers) if len(members) == 1 else MaxMinShares(rate, members, servers)
        return Network(shares, len(members) * len(servers))

    def _key(self, worker: int, server: int) -> int:
        return worker * len(self.server_links) + server

    # -- the loop ------------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the job; afterwards ``workers`` have their times. SimulationError if it comes to a standstill."""
        events, up, down = self.events, self.up, self.down
        for worker in self.workers:
            heapq.heappush(events, (0.0, next(self.sequence), self._begin, (worker,)))
        while self.running:
            t = min(up.shares.next, down.shares.next, events[0][0] if events else math.inf)
            if t == math.inf:
                raise SimulationError(
                    "the simulated job has come to a standstill: "
                    + "; ".join(
                        f"worker {worker.number} in iteration {len(worker.starts) - 1} waits for layer {worker.layer}"
                        for worker in self.workers
                    )
                )
            while events and events[0][0] <= t:
                _, _, call, arguments = heapq.heappop(events)
                call(*arguments, t)
            if up.shares.next <= t:
                for key, message in up.arrived(t):
                    self._sent(key, message, t)
            if down.shares.next <= t:
                for key, message in down.arrived(t):
                    self._returned(key, message, t)
            # Everything that happens at one moment is known before the schedulers decide.
            if self.eager and not (events and events[0][0] <= t) and up.shares.next > t and down.shares.next > t:
                for number in sorted(self.eager):
                    self._decide(self.workers[number], t)
                self.eager.clear()

    def _at(self, time: float, t: float, call: Callable[..., None], *arguments: Any) -> None:
        """Make a call at a time, at once if it has come."""
        if time <= t:
            call(*arguments, t)
        else:
            self._later(time, call, *arguments)

    def _later(self, time: float, call: Callable[..., None], *arguments: Any) -> None:
        """Make a call at a time that has not passed, after all that was asked for before."""
        heapq.heappush(self.events, (time, next(self.sequence), call, arguments))

    # -- compute -------------------------------------------------------------------------------------------------------------

    def _begin(self, worker: Worker, t: float) -> None:
        """Backward begins, unless this was the last iteration."""
        worker.starts.append(t)
        if len(worker.starts) > self.iterations:
            self.running -= 1
            return
        factor = worker.draw(self.cluster.jitter)
        worker.backward_end = worker.clock = t + factor * self.backward
        worker.layer = 0
        worker.to_come = [len(copies) for copies in self.copies_of]
        worker.unanswered = [len(copy.units) for copy in self.copies]
        worker.missing = list(self.copies_per_gradient)
        for step, time in enumerate(self.step_times):
            self._at(t + factor * time, t, self._ready, worker, step)

    def _ready(self, worker: Worker, step: int, t: float) -> None:
        """A step's gradients are there: they are copied to the host, most urgent first, as Module pushes them."""
        iteration = len(worker.starts) - 1
        for copy in self.step_copies[step]:
            self._copy(worker, TO_HOST, copy, t, self._on_host, worker, copy, iteration)

    def _on_host(self, worker: Worker, copy: Copy, iteration: int, t: float) -> None:
        for unit in copy.units:
            worker.to_come[unit] -= 1
            if worker.to_come[unit]:
                continue
            worker.times[0][unit] = t
            if self.plain:
                self._release(worker, unit, t)
            else:
                worker.scheduler.ready(unit, iteration, t)
        self.eager.add(worker.number)

    def _copy(self, worker: Worker, way: int, copy: Copy, t: float, call: Callable[..., None], *arguments: Any) -> None:
        """Between the device and the host; the call follows."""
        if not self.cluster.copy_rate:
            call(*arguments, t)
            return
        # Values that are not sliced are copied by the store itself, which always gives the priority on.
        named = self.cluster.copy_chunk or way == TO_DEVICE and self.units_per_gradient[copy.gradient] == 1
        first = len(self.forward) if self.cluster.copy_chunk and way == TO_DEVICE else 0  # values before gradients
        worker.copies.push(way, copy.bytes, first - copy.gradient if named else 0, call, arguments)
        self._copies_begin(worker, t)

    def _copies_begin(self, worker: Worker, t: float) -> None:
        for end, call, arguments in worker.copies.begin(t):
            self._at(end, t, self._copied, worker, call, arguments)

    def _copied(self, worker: Worker, call: Callable[..., None], arguments: Tuple[Any, ...], t: float) -> None:
        worker.copies.ended()
        call(*arguments, t)
        self._copies_begin(worker, t)

    def _compute_forward(self, worker: Worker, t: float) -> None:
        """A parameter has come at ``t``: give the device all layers that have theirs."""
        while worker.layer < len(self.forward) and not worker.missing[worker.layer]:
            start = max(worker.clock, t)
            worker.clock = start + worker.factors[-1] * self.forward[worker.layer]
            worker.forward[worker.layer] = (start, worker.clock)
            worker.layer += 1
        if worker.layer == len(self.forward):
            self._at(worker.clock, t, self._begin, worker)

    # -- scheduling ------------------------------------------------------------------------------------------------------------

    def _decide(self, worker: Worker, t: float) -> None:
        """What the driver does at every event: sample drain, then ask the scheduler."""
        if self.plain:
            return
        scheduler = worker.scheduler
        for server in list(worker.undrained):
            meter = worker.meters[server]
            total = meter.drained(t)
            for link in self.server_links[server]:
                scheduler.drained(link, total, t)
            if total == meter.released:
                worker.undrained.remove(server)
        released, wake = scheduler.decide(t)
        for unit in released:
            self._release(worker, unit, t)
        worker.poll_at = math.inf
        if wake != math.inf:
            worker.poll_at = t + max(POLL_MIN, min(wake - t, max(POLL_MAX, POLL_SHARE * (wake - t))))
            self._at(worker.poll_at, t, self._poll, worker)

    def _poll(self, worker: Worker, t: float) -> None:
        if worker.poll_at == t:  # else it has decided since, and polls at another time
            self.eager.add(worker.number)

    # -- a unit's way ----------------------------------------------------------------------------------------------------------

    def _release(self, worker: Worker, unit: int, t: float) -> None:
        worker.times[1][unit] = t
        parts = self.parts[unit]
        worker.parts_left[unit] = len(parts)
        for part in parts:
            worker.meters[part.server].released += part.payload
            worker.undrained.add(part.server)
            cost = self.cluster.message_seconds * len(self.server_links[part.server])
            worker.sender_free = max(worker.sender_free, t) + cost
            self._at(worker.sender_free, t, self.up.send, self._key(worker.number, part.server), Message(unit, part.payload, part.wire))

    def _sent(self, key: int, message: Message, t: float) -> None:
        """The last byte of a request has left its worker."""
        worker, server = self.workers[key // len(self.server_links)], key % len(self.server_links)
        worker.times[2][message.unit] = t + self.cluster.rtt
        worker.meters[server].left(message)
        self._at(t + self.cluster.rtt / 2, t, self._reach, server, worker, message)

    def _requested(self, key: int, message: Message, t: float) -> None:
        """The last byte of a request has arrived over ports."""
        worker, server = self.workers[key // len(self.server_links)], key % len(self.server_links)
        worker.times[2][message.unit] = t + self.cluster.rtt / 2
        self._reach(server, worker, message, t)

    def _responded(self, key: int, message: Message, t: float) -> None:
        """The last byte of an answer has arrived over ports."""
        self._receive(self.workers[key // len(self.server_links)], key % len(self.server_links), message.unit, t)

    def _reach(self, server: int, worker: Worker, message: Message, t: float) -> None:
        """The server has a worker's request whole; it handles one after the other."""
        cost = self.cluster.server_message_seconds + self.cluster.server_byte_seconds * message.payload
        self.server_free[server] = max(self.server_free[server], t) + cost * worker.count
        self._at(self.server_free[server], t, self._handled, server, worker, message)

    def _handled(self, server: int, worker: Worker, message: Message, t: float) -> None:
        handled = self.handled[server]
        handled[message.unit] += worker.count
        if handled[message.unit] == self.cluster.workers:
            handled[message.unit] = 0
            for other in self.workers:
                self.down.send(self._key(other.number, server), Message(message.unit, message.payload, message.wire), t)

    def _returned(self, key: int, message: Message, t: float) -> None:
        """The last byte of an answer has left its server."""
        worker, server = self.workers[key // len(self.server_links)], key % len(self.server_links)
        self._at(t + self.cluster.rtt / 2, t, self._receive, worker, server, message.unit)

    def _receive(self, worker: Worker, server: int, unit: int, t: float) -> None:
        cost = self.cluster.message_seconds * len(self.server_links[server])
        worker.receiver_free = max(worker.receiver_free, t) + cost
        self._at(worker.receiver_free, t, self._answered, worker, unit)

    def _answered(self, worker: Worker, unit: int, t: float) -> None:
        worker.parts_left[unit] -= 1
        if worker.parts_left[unit]:
            return
        worker.times[3][unit] = t
        if not self.plain:
            worker.scheduler.done(unit, t)
            self.eager.add(worker.number)
        for number in self.copies_of[unit]:
            worker.unanswered[number] -= 1
            if not worker.unanswered[number]:
                copy = self.copies[number]
                self._copy(worker, TO_DEVICE, copy, t, self._on_device, worker, copy.gradient)

    def _on_device(self, worker: Worker, gradient: int, t: float) -> None:
        worker.missing[gradient] -= 1
        if not worker.missing[gradient] and gradient == worker.layer:
            self._compute_forward(worker, t)
