"""The links' rate halves in the middle of a run, and doubles again: how soon is the job back at the new bound?

    python -m benchmarks.rate_change --cell resnet50_v1,rho=1,compute=0.8 --iterations 30

Prints each phase's bound, the iterations until the time stays within 10% of it (median of five), and every iteration's time.
Exit code 1 if a phase needs more than 20 iterations.
"""

import argparse
import statistics
import sys
import threading
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

from prophet_mx.cli.arguments import count
from prophet_mx.errors import ProphetError
from prophet_mx.planning.bound import lower_bound, worker_rate

from .comparison.cells import Cell
from .comparison.methods import METHODS
from .testbed import Testbed, measure
from .testbed.emulated import Task
from .testbed.exits import exit_code
from .testbed.job import run_job

ALLOWED = 1.10  # of the new bound
SETTLED = 5  # iterations whose median counts
LIMIT = 20  # iterations in which to get there
STARTUP = 15.0  # seconds until a job iterates, at most


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; see the top of this file. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rate_change", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cell", default="resnet50_v1,rho=1,compute=0.8", help="as for benchmarks.run")
    parser.add_argument("--method", choices=METHODS, default="prophet")
    parser.add_argument("--iterations", type=count, default=30, help="about how many per phase (default 30)")
    options = parser.parse_args(arguments)
    try:
        cell = Cell.parse(options.cell)
        with Testbed(cell.workers, cell.servers, cell.rate) as bed:
            return report(*run(bed, cell, options.method, options.iterations))
    except ProphetError as error:
        return exit_code(error)


def run(bed: Testbed, cell: Cell, method: str, iterations: int) -> Tuple[List[float], List[Tuple[float, float]]]:
    """Run the job through three phases; its starts (seconds) and, per phase, since when and the bound."""
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
    return starts, [(starts[0], load.bound)] + list(zip(changed, (slow, load.bound)))


def report(starts: Sequence[float], phases: Sequence[Tuple[float, float]]) -> int:
    """Print what each phase took; the exit code."""
    late = False
    ends = [since for since, _ in phases[1:]] + [starts[-1]]
    for (since, bound), until in zip(phases, ends):
        times = [b - a for a, b in zip(starts, starts[1:]) if since <= a and b <= until]
        there = next((i for i in range(len(times) - SETTLED + 1) if statistics.median(times[i : i + SETTLED]) <= ALLOWED * bound), None)
        settled = statistics.median(times[there:]) if there is not None else float("nan")
        print(
            f"bound {bound * 1e3:.0f} ms: within 10% after {there} iterations, then {settled * 1e3:.0f} ms "
            f"({settled / bound:.3f} of the bound); {' '.join(f'{t * 1e3:.0f}' for t in times)}"
        )
        late = late or there is None or there > LIMIT
    return int(late or len(phases) < 3)


if __name__ == "__main__":
    sys.exit(main())
