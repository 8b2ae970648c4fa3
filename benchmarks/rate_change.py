"""The links' rate halves in the middle of a run, and doubles again: how soon is the job back at the new bound?

    python -m benchmarks.rate_change --cell resnet50_v1,rho=1,compute=0.8 --iterations 30

Prints each phase's bound, the iterations until the time stays within 10% of it (median of five), and every iteration's time. Results are
written as by benchmarks.run. Exit code 1 if a phase needs more than 20 iterations.
"""

import argparse
import statistics
import sys
import threading
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from prophet_mx.cli.arguments import count
from prophet_mx.errors import ProphetError
from prophet_mx.planning.bound import lower_bound, worker_rate

from .comparison.cells import Cell, Load
from .comparison.metadata import describe
from .comparison.methods import METHODS
from .comparison.results import add_output_options, write_everywhere
from .comparison.tables import scaling
from .testbed import Testbed, measure
from .testbed.emulated import Task
from .testbed.exits import exit_code
from .testbed.job import run_job

ALLOWED = 1.10  # of the new bound
SETTLED = 5  # iterations whose median counts
LIMIT = 20  # iterations in which to get there
PHASES = 3
STARTUP = 15.0  # seconds until a job iterates, at most


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; see the top of this file. Returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rate_change", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cell", default="resnet50_v1,rho=1,compute=0.8", help="as for benchmarks.run")
    parser.add_argument("--method", choices=METHODS, default="prophet")
    parser.add_argument("--iterations", type=count, default=30, help="about how many per phase (default 30)")
    add_output_options(parser)
    options = parser.parse_args(arguments)
    try:
        cell = Cell.parse(options.cell)
        with Testbed(cell.workers, cell.servers, cell.rate) as bed:
            load, starts, bounds = run(bed, cell, options.method, options.iterations)
    except ProphetError as error:
        return exit_code(error)
    found = phases(starts, bounds)
    sent = scaling(cell.profile, load.model_bytes / 1e6, [load.profile.total_bytes / 1e6])
    table = f"**{cell}**, {options.method}: {sent}\n\n{markdown(found)}"
    print(table)
    rows = [(phase + 1, round(1e3 * each.bound, 1), round(1e3 * time, 1)) for phase, each in enumerate(found) for time in each.times]
    write_everywhere(options, "rate_change", ("phase", "bound_ms", "time_ms"), rows, table, describe("rate_change", arguments))
    return int(len(found) < PHASES or any(phase.settled is None or phase.settled > LIMIT for phase in found))


def run(bed: Testbed, cell: Cell, method: str, iterations: int) -> Tuple[Load, List[float], List[Tuple[float, float]]]:
    """Run the job through three phases; what it did, its starts (seconds) and, per phase, since when and the bound."""
    goodput = measure(bed)
    load = cell.load(goodput.link)
    slow = lower_bound(load.profile, worker_rate(goodput.link / 2, cell.workers, cell.servers))
    seconds = [STARTUP + iterations * load.bound, iterations * slow * 1.1]
    count = round((sum(seconds) + iterations * load.bound) / load.bound)
    results: List[List[Dict[str, Any]]] = []
    errors: List[ProphetError] = []
    changed: List[float] = []

    def job() -> None:
        kind = METHODS[method]
        try:
            results.append(
                run_job(bed, load.profile, Task("", count, kind.wrap, kind.pushpull), {**load.env, **kind.env}, 4 * sum(seconds))
            )
        except ProphetError as error:
            errors.append(error)

    thread = threading.Thread(target=job)
    thread.start()
    for wait, rate in zip(seconds, (cell.rate / 2, cell.rate)):
        thread.join(wait)
        if thread.is_alive():
            bed.set_rate(rate)
            changed.append(time.monotonic())
    thread.join()
    if errors:
        raise errors[0]
    starts = results[0][0]["starts"]
    return load, starts, [(starts[0], load.bound)] + list(zip(changed, (slow, load.bound)))


class Phase(NamedTuple):
    """Seconds of the bound and of each iteration; ``settled``: iterations until the time stays within 10% of the bound, None if never."""

    bound: float
    times: List[float]
    settled: Optional[int]


def phases(starts: Sequence[float], bounds: Sequence[Tuple[float, float]]) -> List[Phase]:
    """What each phase took; ``bounds``: since when, and the bound."""
    found = []
    ends = [since for since, _ in bounds[1:]] + [starts[-1]]
    for (since, bound), until in zip(bounds, ends):
        times = [b - a for a, b in zip(starts, starts[1:]) if since <= a and b <= until]
        there = next((i for i in range(len(times) - SETTLED + 1) if statistics.median(times[i : i + SETTLED]) <= ALLOWED * bound), None)
        found.append(Phase(bound, times, there))
    return found


def markdown(found: Sequence[Phase]) -> str:
    """A row per phase."""
    lines = ["| bound, ms | within 10% after | then, ms (/ bound) | iterations, ms |", "|---:|---:|---:|---|"]
    for phase in found:
        then = "never | " if phase.settled is None else f"{phase.settled} iterations | {_then(phase)}"
        lines.append(f"| {phase.bound * 1e3:.0f} | {then} | {' '.join(f'{time * 1e3:.0f}' for time in phase.times)} |")
    return "\n".join(lines) + "\n"


def _then(phase: Phase) -> str:
    settled = statistics.median(phase.times[phase.settled :])
    return f"{settled * 1e3:.0f} ({settled / phase.bound:.3f})"


if __name__ == "__main__":
    sys.exit(main())
