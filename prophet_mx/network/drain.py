"""The network path to the servers: finds this process's connections to them and chooses how drain is counted.

Drain is counted by the first of these that works here, unless ``Config.drain`` names one:

``tcp``        bytes acknowledged by the server's kernel, per connection (Linux 4.1 and later, ps-lite's own ZMQ van)
``nic``        bytes that the network interface has sent, read with psutil: other traffic of the machine counts as well
``predicted``  bytes released / rate, corrected by every answer
"""

import logging
import os
import threading
from typing import Callable, List, Mapping, Optional, Sequence, Tuple

import psutil

from .. import _core
from ..config import Config
from ..errors import KVStoreError
from ..machine import address_towards
from ..runtime import start_thread
from .connections import tcp_connections

logger = logging.getLogger("prophet_mx")

NIC_PERIOD = 0.005  # seconds between two readings of the interface's counters


def server_sockets() -> List[int]:
    """File descriptors of this process's outgoing TCP connections other than those to the ps-lite scheduler and to itself.

    ps-lite connects every worker to the scheduler, to each server and to itself, and each of them to the worker's listening port:
    a connection with that port at either end is not one to a server.
    """
    connections = tcp_connections()
    listening = {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}
    root = os.environ.get("DMLC_PS_ROOT_PORT", "")
    return sorted(
        c.fd
        for c in connections
        if c.status == psutil.CONN_ESTABLISHED
        and c.fd >= 0
        and c.raddr
        and c.laddr.port not in listening
        and not (c.raddr.port in listening and c.raddr.ip == c.laddr.ip)
        and str(c.raddr.port) != root
    )


def match_servers(fds: Sequence[int], servers: int, ask: Callable[[int], bool]) -> Optional[List[int]]:
    """Order the sockets by server; None if that cannot be done.

    ``ask(i)`` sends a request to server i and waits for the answer: the socket that wrote the most meanwhile is i's. It returns False
    if there is nothing to ask that server for, because no key is placed on it alone; such servers get what sockets are left, in any
    order, as all that is ever sent to them is their share of arrays that are spread evenly over all servers.
    """
    found: List[Optional[int]] = []
    for server in range(servers):
        before = [_written(fd) for fd in fds]
        if not ask(server):
            found.append(None)
            continue
        grown = [_written(fd) - start for fd, start in zip(fds, before)]
        found.append(fds[grown.index(max(grown))])
    known = [fd for fd in found if fd is not None]
    left = [fd for fd in fds if fd not in known]
    if len(set(known)) != len(known) or len(known) + len(left) < servers or (left and len(fds) != servers):
        return None
    return [fd if fd is not None else left.pop() for fd in found]


def _written(fd: int) -> int:
    acked, queued, _ = _core.tcp_sample(fd)
    return acked + queued


def interface_name(environ: Mapping[str, str] = os.environ) -> Optional[str]:
    """The network interface that leads to the ps-lite scheduler, or None if it is not known."""
    if environ.get("DMLC_INTERFACE") in psutil.net_if_addrs():
        return environ["DMLC_INTERFACE"]
    try:
        address = address_towards(environ.get("DMLC_PS_ROOT_URI", ""), int(environ.get("DMLC_PS_ROOT_PORT", "9")))
    except ValueError:
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(a.address == address for a in addresses):
            return str(name)
    return None


class LinkMonitor:
    """Feeds a driver with drain. :meth:`attach` chooses the source, :meth:`close` ends it (joins its thread, if it has one).

    ``fail`` is told of an error in that thread. Attribute ``sockets``: (file descriptor, server) of the connections whose drain is read.
    """

    def __init__(self, driver: "_core.Driver", config: Config, servers: int, fail: Callable[[str, Exception], None]) -> None:
        self._driver = driver
        self._config = config
        self._servers = servers
        self._fail = fail
        self.sockets: List[Tuple[int, int]] = []
        self._stop = threading.Event()
        self._thread: Optional[threading.Thread] = None
        self.source = "predicted"

    def attach(self, ask: Callable[[int], bool]) -> str:
        """Choose the source of drain and start it; its name. ``ask`` is as in :func:`match_servers`."""
        wanted, reason = self._config.drain, ""
        if wanted in ("auto", "tcp"):
            reason = self._attach_tcp(ask)
            if not reason:
                return self.source
        if wanted in ("auto", "nic"):
            failed = self._attach_nic(reason)
            if not failed:
                return self.source
            reason += failed
        self._driver.use_predicted()
        logger.warning("drain is predicted from the measured rate%s", reason)
        return self.source

    def _attach_tcp(self, ask: Callable[[int], bool]) -> str:
        """Use TCP_INFO; the reason why not, or ''."""
        try:
            fds = server_sockets()
            if len(fds) < self._servers:
                return f", as {len(fds)} TCP connection(s) to {self._servers} server(s) were found"
            if len(fds) > 1:
                matched = match_servers(fds, self._servers, ask)
                if matched is None:
                    return f", as {len(fds)} TCP connections could not be matched to {self._servers} server(s)"
                fds = matched
            self._driver.use_tcp(fds)
            self.sockets, self.source = [(fd, server) for server, fd in enumerate(fds)], "tcp"
        except (OSError, psutil.Error) as error:
            return f", as TCP_INFO cannot be used ({error})"
        logger.info("drain is read from TCP_INFO of the connections to %d server(s)", self._servers)
        return ""

    def _attach_nic(self, reason: str) -> str:
        """Use an interface's counters, for this reason; why not, or ''."""
        name = interface_name()
        if name is None or name not in psutil.net_io_counters(pernic=True):
            return "; the network interface that leads to the servers was not found"
        self._driver.use_fed()
        try:
            self._thread = start_thread("nic", self._read_nic, name)
        except KVStoreError as error:
            return f"; {error}"
        self.source = "nic"
        logger.warning("drain is read from the counters of interface %s%s", name, reason)
        return ""

    def _read_nic(self, name: str) -> None:
        try:
            self._feed(name)
        except Exception as error:
            self._driver.use_predicted()
            self._fail("the link monitor", error)

    def _feed(self, name: str) -> None:
        last = psutil.net_io_counters(pernic=True)[name].bytes_sent
        while not self._stop.wait(NIC_PERIOD):
            counters = psutil.net_io_counters(pernic=True).get(name)
            if counters is None:
                logger.warning("interface %s is gone; drain is predicted from now on", name)
                self._driver.use_predicted()
                return
            fresh, last = counters.bytes_sent - last, counters.bytes_sent
            for link in range(self._servers):
                self._driver.feed_drained(link, max(0, fresh) // self._servers)

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
