"""Compares the automatic sizes with others where a switch's ports hold little, in the simulator.

    python -m benchmarks.ports
    python -m benchmarks.ports --machines 4,2 --ports 64KB --message 222us

Every cell is ResNet-50 at rho 1, 150 ms of compute and 1 Gbit/s. The *regret* is the time with what is chosen over the best time of a small
grid of units and fixed windows, minus 1. The last column tries a law that knows the number of workers and assumes a port:

    unit = the smallest whose messages take SHARE of the time on the wire, at least port / (4 * workers), at most the chosen one
    window = 1.5 * port / workers, at least two units

A cell takes seconds with 2 workers, and minutes with 16.
"""

import argparse
import sys
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from prophet_mx.cli.arguments import checked, cost_seconds, port_size
from prophet_mx.planning.bound import scaled_to_rho, worker_rate
from prophet_mx.planning.placement import BIGARRAY_BOUND
from prophet_mx.profiling.gradient_profile import GradientProfile
from prophet_mx.profiling.model_profiles import model_profile
from prophet_mx.simulation.cluster import Cluster, Unit, connection_rate, default_units, in_total_order, make_units, message_time
from prophet_mx.simulation.simulator import simulate
from prophet_mx.sizes import MIN_UNIT, message_bytes

RATE, COMPUTE, JITTER = 119e6, 0.15, 0.01
ITERATIONS, WARMUP = 2, 2
GRID = tuple((share, units) for share in (0.5, 1.0, 2.0) for units in (0, 1, 2, 4))  # of the chosen unit; window in units, 0: automatic
SHARE, ASSUMED = 0.8, 64_000  # the law's: of the time on the wire; bytes of a port
MACHINES = ((2, 1), (4, 1), (8, 1), (4, 2), (8, 2), (4, 4))  # workers, servers
PORTS = (64_000, 128_000, int(RATE * 0.01))  # bytes
HEADINGS = ("workers", "servers", "port, KB", "chosen, ms", "best, ms", "unit", "window", "regret", "law, ms")


class Sizes(NamedTuple):
    """Bytes of a unit and of a fixed window; 0: automatic."""

    unit: int
    window: int


class PortCell:
    """One cluster and the job on it."""

    def __init__(self, workers: int, servers: int, port: float, message: float) -> None:
        whole = model_profile("resnet50_v1").scaled(compute=COMPUTE)
        self.profile: GradientProfile = scaled_to_rho(whole, worker_rate(RATE, workers, servers), 1.0)
        self.bigarray = max(1, round(BIGARRAY_BOUND * self.profile.total_bytes / whole.total_bytes))
        each = message * min(0.5, servers / workers)  # a server's time; all servers together are no slower than a worker
        self.cluster = Cluster(
            RATE, workers, servers, rtt=1e-4, message_seconds=message, server_message_seconds=each, jitter=JITTER, port_bytes=port
        )
        self.default = default_units(self.profile, self.cluster, "prophet", self.bigarray)
        self.chosen = max(unit.bytes for unit in self.default)
        self._known: Dict[Sizes, float] = {}

    def seconds(self, sizes: Sizes) -> float:
        """Time of an iteration with these sizes."""
        if sizes not in self._known:
            options = {"iterations": ITERATIONS, "warmup": WARMUP, "window": sizes.window, "seed": 1}
            self._known[sizes] = simulate(self.profile, self.cluster, "prophet", self._units(sizes.unit), **options).seconds
        return self._known[sizes]

    def _units(self, size: int) -> List[Unit]:
        if size == self.chosen:
            return self.default
        servers, rate, message = self.cluster.servers, connection_rate(self.cluster), message_time(self.cluster)
        cost = message_bytes(rate, message, servers)
        units = make_units(self.profile, servers, size, self.bigarray, grouped=True, message=cost)
        return in_total_order(units, self.profile, rate * servers)

    def best(self) -> Tuple[float, Sizes]:
        """The best time of the grid, and its sizes."""
        grid = [Sizes(int(self.chosen * share), int(self.chosen * share * units)) for share, units in GRID]
        return min((self.seconds(sizes), sizes) for sizes in grid)

    def law(self, port: float = ASSUMED) -> Sizes:
        """The sizes of the law at the top of this file."""
        workers = self.cluster.workers
        wire = self.profile.total_bytes / (connection_rate(self.cluster) * self.cluster.servers)
        hidden = self.profile.total_bytes * message_time(self.cluster) / (SHARE * wire)
        unit = int(min(self.chosen, max(port / (4 * workers), hidden, MIN_UNIT)))
        return Sizes(unit, int(max(2 * unit, 1.5 * port / workers)))


def row(workers: int, servers: int, port: float, message: float) -> Tuple[str, ...]:
    """A cell's line of the table."""
    cell = PortCell(workers, servers, port, message)
    chosen = cell.seconds(Sizes(cell.chosen, 0))
    best, sizes = cell.best()
    times = (f"{1e3 * chosen:.0f}", f"{1e3 * best:.0f}")
    found = (str(sizes.unit), str(sizes.window or "auto"), f"{chosen / best - 1:.1%}")
    return (str(workers), str(servers), f"{port / 1e3:.0f}", *times, *found, f"{1e3 * cell.seconds(cell.law()):.0f}")


def machines(text: str) -> Tuple[int, int]:
    """Workers and servers of a text such as ``4,2``."""
    workers, servers = map(int, text.split(","))
    return workers, servers


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; see the top of this file. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ports", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--machines", type=checked(machines), action="append", metavar="W,S", help="workers and servers; may be repeated")
    parser.add_argument("--ports", type=port_size, action="append", metavar="SIZE", help="bytes of a port; may be repeated")
    parser.add_argument("--message", type=cost_seconds, default=130e-6, metavar="TIME", help="time of a message (default: 130us)")
    options = parser.parse_args(arguments)
    print("| " + " | ".join(HEADINGS) + " |\n|" + "---:|" * len(HEADINGS))
    for workers, servers in options.machines or MACHINES:
        for port in options.ports or PORTS:
            print("| " + " | ".join(row(workers, servers, port, options.message)) + " |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
