"""``predict`` and ``simulate``: the options that both have, the job and the clusters that these name, and the table of the answer."""

import argparse
import csv
import io
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ..errors import ConfigError, ProfileError, not_allowed
from ..policies import OFF
from ..profiling.compute_times import complete
from ..profiling.gradient_profile import GradientProfile
from ..profiling.model_profiles import model_names, model_profile
from ..quantities import format_rate
from ..simulation.cluster import DROP, HOLD, MAX_MACHINES, MESSAGE_COSTS, PLAIN, Cluster
from ..simulation.predict import load_costs
from ..simulation.simulator import POLICIES, Result
from ..simulation.verdict import milliseconds
from ..sizes import COPY_BYTES
from .arguments import (
    checked,
    choice,
    compute_time,
    cost_seconds,
    factor,
    link_rate,
    listed,
    message_bytes,
    new_file,
    number,
    port_size,
    whole,
)

EXPLAINED = """\
columns:
  ms       mean time of an iteration in steady state
  bound    lower bound: the least time with any order of sending, without overhead
  ratio    ms / bound
  speedup  time with plain dist_sync ('plain', also called 'off') / time with this policy

--model uses a profile that comes with prophet_mx, in float32, so you can predict before you have
run a job. A job saves its own profile with PROPHET_PROFILE=job.json; use it with --profile. A
profile records when gradients become ready, but not how long forward takes. Without --compute,
the compute time is estimated from the profile's steps; with too few steps this is an error. The
iteration time of one worker and one server on one machine is close to the compute time.

--bandwidth is the goodput of each machine's link, each way: what TCP carries of a program's bytes,
about 94% of an Ethernet link's nominal rate. PROPHET_BANDWIDTH means something else: the rate of
one worker to one server. A worker and a server on one machine count as two machines.

By default a message costs what it cost in jobs on the project's testbed. If the optimizer runs on
the servers, --server-time is longer. 'python -m benchmarks.validate_simulator --fit' writes a file
for --costs. With --jitter, more than 8 workers are simulated as 8 groups.

Without --ports, links are ideal: they lose nothing, however much is sent to one machine at once.
With --ports, several workers that send to one server can fill the queue of its port, and what
is lost is sent again by TCP. Every chunk of every worker is simulated then, so this takes a minute
or more for large models or many workers, and fewer iterations are simulated by default."""

EXIT_CODES = """\
exit codes:
  0  the answer is complete, whether scheduling helps or not
  1  the CSV file cannot be written
  2  wrong argument, or no usable profile"""

HEADINGS = ("policy", "bandwidth", "workers", "servers", "ms", "bound", "ratio", "speedup")
WIDTHS = (14, 12, 7, 7, 9, 9, 7, 7)  # a line fits into a terminal of 80 columns
ITERATIONS = 10  # that are measured, unless asked for
MAX_SIMULATED = 1024  # workers, or servers: an answer of 128 takes about a minute
COUNTED = f"a whole number from 1 to {MAX_SIMULATED}, or to {MAX_MACHINES} with predict --all-reduce"
WARMUP = 5  # iterations before those that are measured
PORT_ITERATIONS, PORT_WARMUP = 4, 3  # with ports, whose simulation takes long
_DEFAULT_MESSAGE, _DEFAULT_SERVER = (1e6 * MESSAGE_COSTS[field] for field in ("message_seconds", "server_message_seconds"))
# What messages and copies cost, and how workers differ: option, field of Cluster (but for the server's rate), type, unit, meaning. Without
# the option --costs decides, or else what measured jobs were fitted with.
COSTS: Tuple[Tuple[str, str, Callable[[str], float], str, str], ...] = (
    ("--rtt", "rtt", cost_seconds, "TIME", "round trip of the idle network (default: 0)"),
    ("--overhead", "message_bytes", message_bytes, "BYTES", "bytes of a message on the wire besides its payload (default: 0)"),
    (
        "--message-time",
        "message_seconds",
        cost_seconds,
        "TIME",
        f"time a worker takes to send a message, and to receive one (default: {_DEFAULT_MESSAGE:.0f}us)",
    ),
    (
        "--server-time",
        "server_message_seconds",
        cost_seconds,
        "TIME",
        f"time a server takes for each message (default: {_DEFAULT_SERVER:.0f}us)",
    ),
    ("--server-rate", "server_rate", link_rate, "RATE", "bytes that a server handles per second, such as 1GB/s (default: no limit)"),
    (
        "--jitter",
        "jitter",
        factor(0, 0.99),
        "SHARE",
        "compute times vary by up to this share, at random per worker and iteration (default: 0)",
    ),
    ("--straggler", "straggler", factor(1, 1e3), "FACTOR", "one worker computes this many times as long as the others (default: 1)"),
    ("--copy-rate", "copy_rate", link_rate, "RATE", "rate of copies between a worker's device and its host, each way (default: no limit)"),
)


@dataclass(frozen=True)
class Answer:
    """One line of the table: a policy on a cluster."""

    result: Result
    speedup: float

    @classmethod
    def of(cls, result: Result, plain: Result) -> "Answer":
        """A policy's result, compared with plain dist_sync on the same cluster."""
        return cls(result, plain.seconds / result.seconds if result.seconds else 1.0)

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


def line(cells: Sequence[str], widths: Sequence[int] = WIDTHS) -> str:
    """A line of a table: HEADINGS, or the cells of a row."""
    return " ".join([cells[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:])])


def write_csv(command: str, path: Optional[str], rows: Sequence[Mapping[str, Any]]) -> int:
    """Write rows to a CSV file, if one is asked for. Returns the exit code: 1, after a line that says why, if it cannot be written."""
    if not path:
        return 0
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.getvalue())
    except OSError as error:
        print(f"prophet-mx {command}: error: --csv: cannot write {path}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


@dataclass(frozen=True)
class Question:
    """A job and the clusters that it may run on."""

    profile: GradientProfile  # with compute times
    compute: str  # where these come from, in words
    clusters: List[Cluster]  # one for each number of workers and bandwidth
    policies: List[str]  # to answer for
    effort: Dict[str, int]  # ``iterations``, ``warmup`` and ``seed`` of a simulation


def as_dict(profile: GradientProfile, compute: str, rows: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
    """A job for JSON, with the rows of the answer: seconds, bytes/s."""
    return {"profile": profile.name, "compute": compute, "compute_seconds": profile.compute_seconds, "rows": rows}


def job_sentence(profile: GradientProfile, compute: str) -> str:
    """A job, in a sentence; ``compute`` says where its compute times come from."""
    return (
        f"{profile.name}: {len(profile.gradients)} gradients in {len(profile.steps)} steps, {profile.total_bytes / 1e6:.1f} MB; "
        f"compute {milliseconds(profile.compute_seconds)}, {compute}"
    )


def add_question(parser: argparse.ArgumentParser) -> None:
    """Add all options that both commands have."""
    _add_job(parser)
    _add_cluster(parser)
    add = parser.add_argument_group("simulation and output").add_argument
    add("--seed", type=whole(2**32, 0), metavar="N", help="seed of the jitter (default: 0)")
    add(
        "--iterations",
        type=whole(1000),
        metavar="N",
        help=f"iterations to measure, after {WARMUP} others (default: {ITERATIONS}; with --ports {PORT_ITERATIONS} after {PORT_WARMUP})",
    )
    add("--json", action="store_true", help="print JSON instead of words and table, in seconds and bytes/s")
    add("--csv", type=new_file, metavar="FILE", help="also write the table, with seconds and bytes/s, to this file")


def _add_job(parser: argparse.ArgumentParser) -> None:
    job = parser.add_argument_group("job")
    source = job.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--model",
        type=checked(model_profile),
        metavar="NAME",
        help=f"a model with a built-in profile: {', '.join(model_names())}; its beginning is enough if no other begins so; needs --compute",
    )
    source.add_argument("--profile", metavar="FILE", help="profile of a job, saved by PROPHET_PROFILE")
    add = job.add_argument
    add(
        "--compute",
        type=compute_time,
        metavar="TIME",
        help="compute time of an iteration, without communication, such as 250ms (default: from the profile, or estimated from it)",
    )
    add("--size", type=factor(1e-3, 10), default=1.0, metavar="FACTOR", help="scale the sizes of all gradients, 0.5 for fp16 (default: 1)")
    add(
        "--policy",
        type=listed(_policy),
        default=list(POLICIES),
        metavar="NAME[,NAME...]",
        help=f"one or more of {', '.join(POLICIES)} (default: all)",
    )


def _policy(text: str) -> str:
    """One of the policies; ``off``, as the setting calls plain dist_sync, is ``plain``."""
    return PLAIN if text.lower() == OFF else choice(POLICIES)(text)


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    workers = number(int, 1, MAX_MACHINES, COUNTED)
    add = parser.add_argument_group("cluster").add_argument
    add(
        "--bandwidth",
        required=True,
        type=listed(link_rate),
        metavar="RATE[,RATE...]",
        help="goodput of each machine's link, each way, such as 10Gbit",
    )
    add("--workers", type=listed(workers), default=[2], metavar="N[,N...]", help="number of workers (default: 2)")
    add("--servers", type=whole(MAX_SIMULATED), metavar="N", help="number of servers (default: as many as workers)")
    add(
        "--ports",
        type=port_size,
        metavar="SIZE",
        help="bytes that each port of the switch holds, such as 64KB; what exceeds them is lost (default: ideal links, which lose nothing)",
    )
    add(
        "--hosts",
        type=choice((HOLD, DROP)),
        metavar=f"{HOLD}|{DROP}",
        help=f"with --ports: whether hosts hold back what they send, as they usually do, or drop what a port would, as policed links do "
        f"(default: {HOLD})",
    )
    add = parser.add_argument_group("costs of messages and copies, and differences between workers").add_argument
    add("--costs", metavar="FILE", help="JSON file of these costs; the options below override it")
    for option, field, kind, unit, meaning in COSTS:
        add(option, dest=field, type=kind, metavar=unit, help=meaning)
    add("--copy-whole", action="store_true", help="copy gradients and values as a whole, not slice by slice")


def read(arguments: argparse.Namespace) -> Question:
    """The job and the clusters that the options name.

    Raises ProfileError if the profile cannot be used, and ConfigError if another option is not allowed.
    """
    if max(arguments.workers) > MAX_SIMULATED:
        raise ConfigError(not_allowed(f"--workers {max(arguments.workers)}", COUNTED))
    profile, compute = job_of(arguments)
    costs: Dict[str, Any] = {**MESSAGE_COSTS, **(load_costs(arguments.costs) if arguments.costs else {})}
    costs.update({field: getattr(arguments, field) for _, field, *_ in COSTS if getattr(arguments, field) is not None})
    if "server_rate" in costs:
        costs["server_byte_seconds"] = 1 / costs.pop("server_rate")
    if arguments.hosts and not arguments.ports:
        raise ConfigError(not_allowed("--hosts", "--ports", " without --ports"))
    network = {"port_bytes": arguments.ports or 0, "hosts": arguments.hosts or HOLD}
    if arguments.copy_whole:
        costs["copy_chunk"] = 0
    clusters = [
        Cluster(
            bandwidth=bandwidth, workers=workers, servers=arguments.servers or workers, **{"copy_chunk": COPY_BYTES, **costs, **network}
        )
        for workers in arguments.workers
        for bandwidth in arguments.bandwidth
    ]
    iterations, warmup = (PORT_ITERATIONS, PORT_WARMUP) if arguments.ports else (ITERATIONS, WARMUP)
    effort = {"iterations": arguments.iterations or iterations, "warmup": warmup, "seed": arguments.seed or 0}
    return Question(profile, compute, clusters, list(dict.fromkeys(arguments.policy)), effort)


def job_of(arguments: argparse.Namespace) -> Tuple[GradientProfile, str]:
    """The profile that the options name, with compute times, and where these come from, in words. Raises as :func:`read`."""
    if arguments.model is None:
        if not os.path.exists(arguments.profile):
            with suppress(ProfileError):
                model = model_profile(arguments.profile).name
                raise ConfigError(f"--profile {arguments.profile}: there is no such file; use --model {model} for the built-in profile")
        profile, compute = complete(GradientProfile.load(arguments.profile, pipes=True), arguments.compute)
    elif arguments.compute is None:
        raise ConfigError(
            f"--model {arguments.model.name} needs --compute, the compute time of its iteration on your machines, such as 250ms"
        )
    else:
        profile, compute = complete(arguments.model, arguments.compute)
    return profile.scaled(size=arguments.size), compute
