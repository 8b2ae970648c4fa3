"""Shaped links between network namespaces: one namespace per node, all joined by a bridge in a namespace of its own.

::

    node namespace                         hub namespace
    eth0  [tbf: node -> bridge]  <--veth-->  <node>  [tbf: bridge -> node]  -- br0 (bridge)

The bucket in the hub is a switch's port, which drops the packets that its queue has no room for. The one in the node's namespace is the
host's own queue: it drops as well, as a policed link does, or it holds packets back, as hosts do.

Nothing is created in the host's own namespace, so removing the namespaces removes everything. Their names carry the pid and
the start time of the process that made them: what a dead process left is found and removed by the next one.
"""

import atexit
import ctypes
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, replace
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from prophet_mx.errors import ProphetError
from prophet_mx.quantities import format_rate

PREFIX = "prophet"
_NAME = re.compile(PREFIX + r"-(\d+)-(\d+)(-\d+)?-\w+")
_SUBNET = "10.77"
_CLONE_NEWNET = 0x40000000
_serial = itertools.count()

MIN_RATE, MAX_RATE = 0.01e9 / 8, 10e9 / 8  # bytes/s
HELD_SECONDS = 1.0  # of packets, that a host holds back at most
LEAST_BURST = 6 * 1514  # bytes
SEGMENT = 1448  # bytes of a full TCP segment


class TestbedError(ProphetError):
    """The testbed could not be built or used; the message holds the failing command and what it said."""

    __test__ = False  # not a test class, whatever its name


class NeedsRoot(TestbedError):  # noqa: N818
    """Network namespaces cannot be made here; the message says what is missing."""


def needed_privileges() -> Optional[str]:
    """Why no testbed can be built here, in one line; None if one can."""
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"the testbed needs the command '{tool}' (package iproute2)"
    if os.geteuid() != 0:
        return "the testbed needs root: it makes network namespaces and shapes their links"
    probe = f"{_own_prefix()}-probe"
    made = subprocess.run(["ip", "netns", "add", probe], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if made.returncode != 0:
        return f"the testbed needs network namespaces, which this machine refuses: {made.stdout.strip()}"
    subprocess.run(["ip", "netns", "delete", probe], check=False)
    return None


@dataclass(frozen=True)
class Shape:
    """A token bucket for one direction of a link.

    Attributes
    ----------
    rate : bytes/s on the wire, Ethernet headers included.
    burst : bytes that may leave at once.
    limit : bytes that may queue; more is dropped, so TCP sees a shallow switch port and its acknowledgements stay prompt.
    segment : largest segment TCP may hand over at once. Under the burst, or the kernel has to cut each one up again, which
        costs a whole core at 1 Gbit/s; as large as turns between senders allow, because each one costs the processor a timer.
    """

    rate: float
    burst: int
    limit: int
    segment: int

    @classmethod
    def for_rate(cls, rate: float, burst_time: float = 2e-3, queue_time: float = 6e-3) -> "Shape":
        """The bucket for ``rate`` bytes/s: ``burst_time`` and ``queue_time`` seconds deep, a few packets at least.

        The burst is what the link makes up for after the processor came too late to it, as real links never do.
        """
        burst = max(int(rate * burst_time), LEAST_BURST)
        return cls(rate, burst, max(int(rate * queue_time), 32 * 1514), _segment(burst))

    def with_queue(self, limit: int) -> "Shape":
        """The same with a queue of ``limit`` bytes. What leaves at once is at most half of it, or the queue would not be seen."""
        burst = max(min(self.burst, limit // 2), LEAST_BURST)
        return replace(self, burst=burst, limit=limit, segment=_segment(burst))

    def holding(self) -> "Shape":
        """The same, but with a queue that hosts never fill."""
        return replace(self, limit=max(self.limit, int(self.rate * HELD_SECONDS), 1_000_000))

    def qdisc(self) -> List[str]:
        return ["tbf", "rate", f"{int(self.rate * 8)}bit", "burst", str(self.burst), "limit", str(self.limit)]


def _segment(burst: int) -> int:
    return min(max(burst // 2, 3 * 1514), 65536)


class Losses(NamedTuple):
    """What the network has lost so far: packets that ports and hosts have dropped, and bytes that TCP has sent, and sent again."""

    ports: int
    hosts: int
    sent: int
    resent: int

    def since(self, before: "Losses") -> "Losses":
        return Losses(*(now - then for now, then in zip(self, before)))


class Testbed:
    """Namespaces for ``workers`` and ``servers``, each on a link of ``rate`` bytes/s in each direction.

    Use it as a context manager: whatever ends the block, the processes in the namespaces are ended and the namespaces removed.

    >>> with Testbed(workers=2, servers=1, rate=125e6) as bed:      # doctest: +SKIP
    ...     bed.popen("w0", ["ip", "address"]).wait()

    Attributes
    ----------
    nodes : node name (``s0``, ``s1``, ... ``w0``, ``w1``, ...) -> its IPv4 address.

    Raises
    ------
    NeedsRoot
        no namespaces can be made here.
    TestbedError
        ``rate`` is outside 0.1 to 10 Gbit/s, a count is not positive, or a command failed.
    """

    __test__ = False

    def __init__(
        self,
        workers: int,
        servers: int,
        rate: float,
        shape: Optional[Shape] = None,
        congestion: str = "cubic",
        hosts: Optional[Shape] = None,
    ) -> None:
        if workers < 1 or servers < 1 or workers + servers > 250:
            raise TestbedError(f"{workers} workers and {servers} servers: at least one of each, 250 in all")
        if not MIN_RATE <= rate <= MAX_RATE:
            raise TestbedError(f"a link rate of {format_rate(rate)} is outside {format_rate(MIN_RATE)} to {format_rate(MAX_RATE)}")
        self.workers, self.servers, self.rate = workers, servers, rate
        self.shape = shape or Shape.for_rate(rate)
        self.hosts = hosts or self.shape
        self.congestion = congestion
        names = [f"s{i}" for i in range(servers)] + [f"w{i}" for i in range(workers)]
        self.nodes: Dict[str, str] = {name: f"{_SUBNET}.0.{i + 1}" for i, name in enumerate(names)}
        self._prefix = f"{_own_prefix()}-{next(_serial)}"
        self._processes: List[subprocess.Popen] = []
        self._old_handlers: List[Tuple[int, Any]] = []

    def namespace(self, node: str) -> str:
        """The name of a node's network namespace."""
        return f"{self._prefix}-{node}"

    def __enter__(self) -> "Testbed":
        reason = needed_privileges()
        if reason:
            raise NeedsRoot(reason)
        clean_stale()
        atexit.register(self.close)
        self._turn_signals_into_exits()
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def _turn_signals_into_exits(self) -> None:
        """SIGTERM and SIGHUP unwind the stack as Ctrl-C does; only the main thread may say so."""
        if threading.current_thread() is not threading.main_thread():
            return

        def leave(number: int, frame: Any) -> None:
            raise SystemExit(128 + number)

        for number in (signal.SIGTERM, signal.SIGHUP):
            self._old_handlers.append((number, signal.signal(number, leave)))

    def _build(self) -> None:
        hub = self.namespace("hub")
        _run("ip", "netns", "add", hub)
        _run("ip", "-n", hub, "link", "add", "br0", "type", "bridge", "stp_state", "0", "forward_delay", "0")
        self.run_in("hub", _bypass_firewall)
        _run("ip", "-n", hub, "link", "set", "br0", "up")
        for node, address in self.nodes.items():
            space = self.namespace(node)
            _run("ip", "netns", "add", space)
            _run("ip", "-n", space, "link", "add", "eth0", "type", "veth", "peer", "name", node, "netns", hub)
            _run("ip", "-n", space, "address", "add", f"{address}/24", "dev", "eth0")
            _run("ip", "-n", space, "link", "set", "eth0", "gso_max_size", str(self.shape.segment))
            for name in ("lo", "eth0"):
                _run("ip", "-n", space, "link", "set", name, "up")
            _run("ip", "-n", hub, "link", "set", node, "master", "br0", "up")
            _run("tc", "-n", space, "qdisc", "add", "dev", "eth0", "root", *self.hosts.qdisc())
            _run("tc", "-n", hub, "qdisc", "add", "dev", node, "root", *self.shape.qdisc())
            _run(
                "ip", "-n", space, "route", "replace", f"{_SUBNET}.0.0/24", "dev", "eth0", "src", address, "congctl", self.congestion
            )  # a namespace may not choose by sysctl what the host restricts

    def set_rate(self, rate: float, shape: Optional[Shape] = None) -> None:
        """Change every link to ``rate`` bytes/s, in both directions, while it is used. Hosts drop as ports do from now on."""
        shape = shape or Shape.for_rate(rate)
        for node in self.nodes:
            for space, device in ((self.namespace(node), "eth0"), (self.namespace("hub"), node)):
                _run("tc", "-n", space, "qdisc", "change", "dev", device, "root", *shape.qdisc())
        self.rate, self.shape, self.hosts = rate, shape, shape

    def losses(self) -> Losses:
        """What the network has lost since it was built."""
        dropped = {"ports": 0, "hosts": 0}
        sent = resent = 0
        for node in self.nodes:
            for where, space, device in (("ports", self.namespace("hub"), node), ("hosts", self.namespace(node), "eth0")):
                listed = json.loads(_run("tc", "-n", space, "-s", "-j", "qdisc", "show", "dev", device, "root"))
                dropped[where] += sum(each["drops"] for each in listed)
                sent += sum(each["bytes"] for each in listed) if where == "hosts" else 0
            resent += SEGMENT * self.run_in(node, _resent_segments)
        return Losses(dropped["ports"], dropped["hosts"], sent, resent)

    def popen(self, node: str, command: List[str], **options: Any) -> "subprocess.Popen[Any]":
        """Start ``command`` in the namespace of ``node``; ended by :meth:`close` if it still runs. Takes Popen's options."""
        process = subprocess.Popen(["ip", "netns", "exec", self.namespace(node)] + command, **options)
        self._processes.append(process)
        return process

    def run_in(self, node: str, function: Any) -> Any:
        """Call ``function()`` on a thread inside the namespace of ``node`` and return its value (sockets made there stay
        there). Raises what it raises."""
        result: List[Any] = [None, None]

        def body() -> None:
            try:
                _enter(self.namespace(node))
                result[0] = function()
            except BaseException as error:
                result[1] = error

        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
        if result[1] is not None:
            raise result[1]
        return result[0]

    def close(self) -> None:
        """End every process in the namespaces and remove them. Safe to call again; a signal does not cut it short."""
        main = threading.current_thread() is threading.main_thread()
        held = {n: signal.signal(n, signal.SIG_IGN) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)} if main else {}
        try:
            for process in self._processes:  # also one that has not entered its namespace yet
                process.kill()
            _remove([name for name in _namespaces() if name.startswith(self._prefix + "-")])
            for process in self._processes:
                process.wait()
            self._processes.clear()
        finally:
            for number, handler in held.items():
                signal.signal(number, handler)
            while main and self._old_handlers:
                signal.signal(*self._old_handlers.pop())
            atexit.unregister(self.close)


def clean_stale() -> List[str]:
    """Remove the namespaces, and end the processes in them, of testbeds whose process is dead. Returns their names."""
    stale = []
    for name in _namespaces():
        match = _NAME.fullmatch(name)
        if match and _start_time(int(match.group(1))) != match.group(2):
            stale.append(name)
    _remove(stale)
    return stale


def _own_prefix() -> str:
    return f"{PREFIX}-{os.getpid()}-{_start_time(os.getpid())}"


def _start_time(pid: int) -> Optional[str]:
    """When a process started, in clock ticks since boot: with its pid this names a process forever. None if it is dead."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()  # from the third field on: the second may hold spaces
    except OSError:
        return None
    return fields[19] if fields[0] not in "ZX" else None


def _namespaces() -> List[str]:
    listed = subprocess.run(["ip", "netns", "list"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return [line.split()[0] for line in listed.splitlines() if line.startswith(PREFIX + "-")]


def _pids(namespace: str) -> List[int]:
    """Processes in a namespace, without this one (whose threads may be visiting)."""
    listed = subprocess.run(["ip", "netns", "pids", namespace], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return [int(pid) for pid in listed.stdout.split() if int(pid) != os.getpid()]


def _remove(namespaces: List[str]) -> None:
    """End the processes in ``namespaces``, each by its pid, then delete them."""
    deadline = time.monotonic() + 10
    while namespaces:
        pids = [pid for name in namespaces for pid in _pids(name)]
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if not pids or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    for name in namespaces:
        subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL, check=False)


def _bypass_firewall() -> None:
    """In this thread's namespace, what a bridge forwards does not pass the firewall's rules, which costs a processor much."""
    for family in ("ip", "ip6", "arp"):
        try:
            with open(f"/proc/sys/net/bridge/bridge-nf-call-{family}tables", "w") as setting:
                setting.write("0")
        except OSError:  # the kernel has no firewall for bridges
            pass


def _enter(namespace: str) -> None:
    """Move the calling thread into a namespace."""
    with open(f"/run/netns/{namespace}") as handle:
        if ctypes.CDLL(None, use_errno=True).setns(handle.fileno(), _CLONE_NEWNET) != 0:
            raise TestbedError(f"cannot enter {namespace}: {os.strerror(ctypes.get_errno())}")


def _resent_segments() -> int:
    """TCP segments that the namespace of this thread has sent again."""
    with open("/proc/thread-self/net/snmp") as file:
        names, values = (line.split() for line in file if line.startswith("Tcp:"))
    return int(values[names.index("RetransSegs")])


def _run(*command: str) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise TestbedError(f"{' '.join(command)}: {done.stdout.strip() or 'exit code ' + str(done.returncode)}")
    return done.stdout
