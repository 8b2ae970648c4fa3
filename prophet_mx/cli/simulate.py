"""The command ``prophet-mx simulate``: what each policy would give on clusters of some sizes and bandwidths."""

import argparse
import csv
import io
import sys
from dataclasses import dataclass
from typing import Any, Dict, Iterator, Sequence, Tuple

from ..errors import ProfileError
from ..profiling.gradient_profile import GradientProfile
from ..quantities import format_rate
from ..simulation.cluster import MAX_MACHINES, Cluster
from ..simulation.compute_times import with_compute
from ..simulation.layout import PLAIN
from ..simulation.simulator import POLICIES, Result, simulate
from ..sizes import COPY_BYTES
from .arguments import add_policies, compute_seconds, cost_seconds, factor, link_rate, listed, message_bytes, new_file, whole

_EPILOG = """\
example, 64 workers and 64 servers at three bandwidths:
  prophet-mx simulate --profile job.json --compute 300ms --bandwidth 10Gbit,25Gbit,100Gbit --workers 64

columns:
  ms      mean time of an iteration in steady state
  bound   what no schedule can beat: the lower bound of the design, without any overhead
  ratio   ms / bound
  speedup time with stock MXNet ('plain') / time with this policy

Costs are 0 unless given; they are fitted to a real cluster by comparing 'plain' with
a measured iteration. Give as the bandwidth what TCP payload really gets (goodput).
With --jitter, more than 8 workers are simulated as 8 groups.

exit codes:
  0  the table is complete
  1  the CSV file cannot be written
  2  wrong argument, or no usable profile"""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    result: Result
    speedup: float

    def values(self) -> Dict[str, Any]:
        """By column of the CSV file; times in seconds, bandwidth in bytes/s."""
        cluster = self.result.cluster
        return {
            "policy": self.result.policy,
            "bandwidth": cluster.bandwidth,
            "workers": cluster.workers,
            "servers": cluster.servers,
            "seconds": self.result.seconds,
            "bound": self.result.bound,
            "ratio": self.result.ratio,
            "speedup": self.speedup,
        }

    def cells(self) -> Tuple[str, ...]:
        """As printed."""
        result = self.result
        return (
            result.policy,
            format_rate(result.cluster.bandwidth),
            str(result.cluster.workers),
            str(result.cluster.servers),
            f"{1e3 * result.seconds:.1f}",
            f"{1e3 * result.bound:.1f}",
            f"{result.ratio:.3f}",
            f"{self.speedup:.2f}",
        )


HEADINGS = ("policy", "bandwidth", "workers", "servers", "ms", "bound", "ratio", "speedup")
WIDTHS = (8, 12, 7, 7, 10, 10, 7, 7)


def sweep(profile: GradientProfile, clusters: Sequence[Cluster], policies: Sequence[str], **options: Any) -> Iterator[Row]:
    """Simulate every policy on every cluster; ``options`` are those of :func:`~prophet_mx.simulation.simulator.simulate`."""
    for cluster in clusters:
        plain = simulate(profile, cluster, PLAIN, **options)
        for policy in policies:
            result = plain if policy == PLAIN else simulate(profile, cluster, policy, **options)
            yield Row(result, plain.seconds / result.seconds if result.seconds else 1.0)


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add ``simulate`` to the command ``prophet-mx``."""
    parser = subparsers.add_parser(
        "simulate",
        help="predict a job's iteration time on other networks and cluster sizes",
        description="Simulate a training job, its cluster and the scheduler that ships, and print a table of iteration times.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    count = whole(MAX_MACHINES)
    zero = "(default: 0)"
    add = parser.add_argument
    add("--profile", required=True, metavar="FILE", help="profile of the job: recorded in a job, or made by benchmarks/profiles.py")
    add("--bandwidth", required=True, type=listed(link_rate), metavar="RATE[,RATE...]", help="goodput of each link, each way")
    add("--workers", type=listed(count), default=[2], metavar="N[,N...]", help="number of workers (default: 2)")
    add("--servers", type=count, metavar="N", help="number of servers (default: as many as workers)")
    add_policies(parser, POLICIES)
    add(
        "--compute",
        type=compute_seconds,
        metavar="TIME",
        help="scale the compute time of an iteration, without communication, to this; a recorded profile needs it",
    )
    add("--size", type=factor(1e-6, 1e6), default=1.0, metavar="FACTOR", help="scale the sizes of all gradients (default: 1)")
    add("--rtt", type=cost_seconds, default=0.0, metavar="TIME", help="round trip of the idle network " + zero)
    add(
        "--overhead", type=message_bytes, default=0.0, metavar="BYTES", help="bytes a message costs on the wire besides its payload " + zero
    )
    add(
        "--message-time",
        type=cost_seconds,
        default=0.0,
        metavar="TIME",
        help="time a worker takes to send a message, and to receive one " + zero,
    )
    add("--server-time", type=cost_seconds, default=0.0, metavar="TIME", help="time a server takes for each message " + zero)
    add("--server-rate", type=link_rate, metavar="RATE", help="what a server handles per second, such as 1GB/s (default: no limit)")
    add(
        "--jitter",
        type=factor(0, 0.99),
        default=0.0,
        metavar="SHARE",
        help="compute times vary by up to this share, at random per worker and iteration " + zero,
    )
    add("--straggler", type=factor(1, 1e3), default=1.0, metavar="FACTOR", help="one worker's compute takes this much longer (default: 1)")
    add(
        "--copy-rate",
        type=link_rate,
        metavar="RATE",
        help="what a worker's device copies to and from the host, each way (default: no limit)",
    )
    add("--copy-whole", action="store_true", help="gradients and values are copied as a whole, not slice by slice")
    add("--seed", type=whole(2**32, 0), default=0, metavar="N", help="of the jitter (default: 0)")
    add("--iterations", type=whole(1000), default=10, metavar="N", help="iterations to measure, after 5 others (default: 10)")
    add("--csv", type=new_file, metavar="FILE", help="also write the table, with seconds and bytes/s, to this file")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    profile = GradientProfile.load(arguments.profile)
    if profile.has_compute:
        profile = profile.scaled(arguments.compute)
    elif arguments.compute is None:
        raise ProfileError(
            f"--profile {arguments.profile!r} has no compute times; allowed: with --compute, the time of an iteration without communication"
        )
    else:
        profile = with_compute(profile, arguments.compute)
    profile = profile.scaled(size=arguments.size)
    clusters = [
        Cluster(
            bandwidth=bandwidth,
            workers=workers,
            servers=arguments.servers or workers,
            rtt=arguments.rtt,
            message_bytes=arguments.overhead,
            message_seconds=arguments.message_time,
            server_message_seconds=arguments.server_time,
            server_byte_seconds=1 / arguments.server_rate if arguments.server_rate else 0.0,
            jitter=arguments.jitter,
            straggler=arguments.straggler,
            copy_rate=arguments.copy_rate or 0.0,
            copy_chunk=0 if arguments.copy_whole else COPY_BYTES,
        )
        for workers in arguments.workers
        for bandwidth in arguments.bandwidth
    ]
    print(
        f"{profile.name}: {len(profile.gradients)} gradients in {len(profile.steps)} steps, "
        f"{profile.total_bytes / 1e6:.1f} MB, compute {1e3 * profile.compute_seconds:.1f} ms"
    )
    print(_line(HEADINGS))
    rows = []
    for row in sweep(profile, clusters, arguments.policy, iterations=arguments.iterations, seed=arguments.seed):
        print(_line(row.cells()), flush=True)
        rows.append(row)
    return _write_csv(arguments.csv, rows) if arguments.csv else 0


def _line(cells: Sequence[str]) -> str:
    return " ".join([cells[0].ljust(WIDTHS[0])] + [cell.rjust(width) for cell, width in zip(cells[1:], WIDTHS[1:])])


def _write_csv(path: str, rows: Sequence[Row]) -> int:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0].values()), lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.values() for row in rows)
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.getvalue())
    except OSError as error:
        print(f"prophet-mx simulate: error: --csv: cannot write {path}: {error.strerror}", file=sys.stderr)
        return 1
    return 0
