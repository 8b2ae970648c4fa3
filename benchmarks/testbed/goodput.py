"""What the shaped links really give: plain TCP, every worker to every server and back, all at once."""

import socket
import statistics
import struct
import threading
import time
from dataclasses import dataclass
from typing import Dict, List, Tuple

from prophet_mx.quantities import format_rate

from .network import Testbed

PAYLOAD_SHARE = 1448 / 1514  # of the bytes of a full Ethernet frame
AGREEMENT = 0.005
TRIES = 4

_CHUNK = 1 << 18
_MOMENTS = 40


@dataclass(frozen=True)
class Goodput:
    """Payload rates in bytes/s, over the links that the test saturates (the servers' with at least as many workers as
    servers, else the workers').

    Attributes
    ----------
    up : from workers to servers, mean over the saturated links; the upper quartile of forty moments, because what the
        processor misses in some of them is no limit of the links. Queues make some moments faster than a link: it counts no more than
        the payload that its rate has room for.
    down : from servers to workers, likewise.
    rtt : median round-trip time under this load, in seconds: how deep the queues are.
    """

    up: float
    down: float
    rtt: float

    def shortfall(self, rate: float) -> str:
        """A warning if links of ``rate`` bytes/s give less than 90%, which headers do not explain; '' if they do not."""
        if self.link >= 0.9 * rate:
            return ""
        return (
            f"warning: links of {format_rate(rate)} give {self.link / rate:.0%}: this machine is too busy or too "
            "slow for them, and times will be those of its processor"
        )

    @property
    def link(self) -> float:
        """The slower direction: the rate to compute bounds with."""
        return min(self.up, self.down)

    def __str__(self) -> str:
        return f"{format_rate(self.up)} up, {format_rate(self.down)} down, both at once; round trip {self.rtt * 1e3:.1f} ms"


def measure(bed: Testbed, seconds: float = 2.0, settle: float = 1.0) -> Goodput:
    """Fill every worker-server pair of ``bed`` both ways for ``settle`` + ``seconds`` and count what arrives in the latter.

    A link does not give more than it can, but less while the machine is busy with something else: so this is done until the best
    two agree to within half a percent, up to four times, and the best counts.
    """
    found: List[Goodput] = []
    while len(found) < 2 or (found[0].link - found[1].link > AGREEMENT * found[0].link and len(found) < TRIES):
        found.append(_measure_once(bed, seconds, settle))
        found.sort(key=lambda goodput: -goodput.link)
    return found[0]


def _measure_once(bed: Testbed, seconds: float, settle: float) -> Goodput:
    pairs = _connect(bed)
    received: Dict[Tuple[str, bool], List[int]] = {}
    stop = threading.Event()
    threads = []
    for (worker, server), (near, far) in pairs.items():
        for up, source, sink in ((True, near, far), (False, far, near)):
            counter = received[f"{worker}{server}", up] = [0]
            threads.append(threading.Thread(target=_send, args=(source, stop)))
            threads.append(threading.Thread(target=_receive, args=(sink, counter)))
    for thread in threads:
        thread.start()
    time.sleep(settle)
    rtts: List[float] = []
    samples = [(time.monotonic(), _totals(received))]
    for _ in range(_MOMENTS):
        time.sleep(seconds / _MOMENTS)
        samples.append((time.monotonic(), _totals(received)))
        rtts += [_round_trip(end_point) for ends in pairs.values() for end_point in ends]
    stop.set()
    for near, far in pairs.values():
        for end_point in (near, far):
            try:
                end_point.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the other end was first
    for thread in threads:
        thread.join()
    for near, far in pairs.values():
        near.close()
        far.close()
    links = min(bed.workers, bed.servers)
    up, down = (
        statistics.quantiles(((after[i] - before[i]) / (end - begin) for (begin, before), (end, after) in zip(samples, samples[1:])), n=4)[
            2
        ]
        / links
        for i in (0, 1)
    )
    most = bed.rate * PAYLOAD_SHARE
    return Goodput(min(up, most), min(down, most), rtt=statistics.median(rtts))


def _totals(received: Dict[Tuple[str, bool], List[int]]) -> Tuple[int, int]:
    """Bytes that arrived so far: at the servers, at the workers."""
    up = sum(counter[0] for (_, upwards), counter in received.items() if upwards)
    return up, sum(counter[0] for counter in received.values()) - up


def _round_trip(end_point: socket.socket) -> float:
    """The kernel's smoothed round-trip time, in seconds (tcpi_rtt of struct tcp_info)."""
    return struct.unpack_from("I", end_point.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 68)[0] / 1e6


def _connect(bed: Testbed) -> Dict[Tuple[str, str], Tuple[socket.socket, socket.socket]]:
    """One TCP connection per worker-server pair, as (worker's end, server's end)."""
    pairs = {}
    for server in (name for name in bed.nodes if name.startswith("s")):
        listener = bed.run_in(server, lambda: socket.create_server((bed.nodes[server], 0), backlog=bed.workers))
        with listener:
            for worker in (name for name in bed.nodes if name.startswith("w")):
                near = bed.run_in(worker, lambda: socket.create_connection(listener.getsockname(), timeout=10))
                far = listener.accept()[0]
                near.settimeout(None)
                pairs[worker, server] = (near, far)
    return pairs


def _send(end_point: socket.socket, stop: threading.Event) -> None:
    chunk = bytes(_CHUNK)
    try:
        while not stop.is_set():
            end_point.sendall(chunk)
    except OSError:
        pass  # shut down: the measurement is over


def _receive(end_point: socket.socket, counter: List[int]) -> None:
    room = bytearray(4 * _CHUNK)
    try:
        while True:
            count = end_point.recv_into(room)
            if not count:
                return
            counter[0] += count
    except OSError:
        pass
