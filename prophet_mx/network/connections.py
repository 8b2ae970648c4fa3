"""This process's TCP connections to the job's servers and scheduler, and how they are: what the watchdog looks at.

ps-lite opens a connection once and never reports when it breaks: ZMQ reconnects silently, and the messages on their way are lost. So a
connection is known here by its socket's number in the kernel: another socket in its place means that the old one broke.
"""

import os
import socket
from contextlib import contextmanager
from typing import Any, Iterator, List, NamedTuple, Optional

import psutil

# By the kernel's numbers, from 1 on.
TCP_STATES = " ESTABLISHED SYN_SENT SYN_RECV FIN_WAIT1 FIN_WAIT2 TIME_WAIT CLOSE CLOSE_WAIT LAST_ACK LISTEN CLOSING".split(" ")
_ESTABLISHED = 1


class Health(NamedTuple):
    """A connection at one moment.

    ``broken``: why it carries nothing any more, '' if it may. ``resending``: what was sent is not acknowledged and sent again: the
    network, or the whole machine at its other end, is gone.
    """

    broken: str
    resending: bool = False


class Connection:
    """One connection. ``server`` is the server's index if it is known, None if not, -1 for the job's scheduler."""

    def __init__(self, fd: int, server: Optional[int]) -> None:
        self._fd = fd
        self._inode = os.fstat(fd).st_ino
        self.server = server
        with _borrowed(fd) as sock:
            host, port = sock.getpeername()[:2]
        self.peer = f"{host}:{port}"

    @property
    def name(self) -> str:
        """``server 1 (10.0.0.2:40123)``; the servers' order is MXNet's, not the launcher's."""
        role = "the job's scheduler" if self.server == -1 else "a server" if self.server is None else f"server {self.server}"
        return f"{role} ({self.peer})"

    def health(self) -> Health:
        """Ask the kernel. Never blocks."""
        try:
            if os.fstat(self._fd).st_ino != self._inode:
                return Health("the socket was closed")
            with _borrowed(self._fd) as sock:
                info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 4)
        except OSError:
            return Health("the socket was closed")
        state, _, retransmits, probes = info
        if state != _ESTABLISHED:
            return Health(f"its state is {TCP_STATES[state] if state < len(TCP_STATES) else state}")
        return Health("", retransmits > 0 and probes == 0)  # probes go to a peer that lives, but takes no more bytes


@contextmanager
def _borrowed(fd: int) -> Iterator[socket.socket]:
    """The socket of another owner, who keeps it. It needs no new descriptor: where the program has used up its own there is none."""
    sock = socket.socket(fileno=fd)
    try:
        yield sock
    finally:
        sock.detach()


def tcp_connections() -> List[Any]:
    """All TCP connections of this process, as psutil shows them."""
    process = psutil.Process()
    found: List[Any] = (process.net_connections if hasattr(process, "net_connections") else process.connections)(kind="tcp")
    return found


def to_scheduler() -> List[int]:
    """File descriptors of this process's connections to the ps-lite scheduler."""
    root = os.environ.get("DMLC_PS_ROOT_PORT", "")
    return [c.fd for c in tcp_connections() if c.status == psutil.CONN_ESTABLISHED and c.fd >= 0 and c.raddr and str(c.raddr.port) == root]
