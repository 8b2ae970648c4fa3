"""Compare methods on the testbed: real MXNet jobs, shaped links, emulated compute; needs root.

    python -m benchmarks.run --cell resnet50_v1,rho=1,workers=2,servers=1,rate=1Gbit --repeats 3

Each cell gets a testbed of its own, whose goodput is measured first. The methods take turns (A B C A B C ...), so that what
happens on the machine meanwhile meets all of them. Warm-up iterations are dropped. Every value that a worker pulls is checked.
A virtual machine may lose its processor to others for a time. Beside the median of all iterations stands that of the undisturbed
ones, during which at most a tenth of a core was taken (``--max-stolen``); how long they took does not count. ``--tries 5
--undisturbed 40`` adds jobs, up to five, to a method that does not have 40 of them yet. Other work on the machine that shall not run
beside a job can take turns with the jobs: ``--lock FILE`` (and ``flock FILE command``).
The exit code is 1 if a job failed or a value was wrong, 3 without the privileges that namespaces need.
"""

import argparse
import fcntl
import json
import shlex
import statistics
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Mapping, Optional, Sequence, TypeVar

from prophet_mx.cli.arguments import checked, count, duration, factor
from prophet_mx.errors import ProphetError

from .comparison.cells import Cell, Load
from .comparison.methods import METHODS, STANDARD, Method, parse
from .comparison.rings import RingRow
from .comparison.rows import Job, Row, job_times, make_row, markdown, undisturbed_times, write
from .comparison.stolen import Stolen
from .testbed import NeedsRoot, Testbed, TestbedError, measure
from .testbed.emulated import Task
from .testbed.exits import exit_code
from .testbed.job import run_job

RESULTS = Path(__file__).with_name("results")
AnyRow = TypeVar("AnyRow", Row, RingRow)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; see the top of this file. Returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(arguments)

    def found() -> Iterator[List[Row]]:
        cells = [Cell.parse(text) for text in options.cell]
        for cell in cells:
            yield run_cell(cell, [parse(name) for name in options.methods], options)

    command = shlex.join(["python", "-m", "benchmarks.run"] + arguments)
    return compare(found(), len(options.methods), options, command, markdown, write)


def compare(
    cells: Iterator[List[AnyRow]],
    methods: int,
    options: argparse.Namespace,
    command: str,
    table: Callable[[Sequence[AnyRow]], str],
    save: Callable[[Sequence[AnyRow], Path, str, str], List[Path]],
) -> int:
    """Take the rows of cells as these are run, print and write what there is in the end, and return the exit code: 1 if a cell has fewer
    rows than ``methods``, a value was wrong, or an error ended it; 3 without the privileges, 130 after Ctrl-C. ``command`` repeats it."""
    rows: List[AnyRow] = []
    failed = False
    try:
        for found in cells:
            rows += found
            failed = failed or len(found) < methods or any(row.wrong for row in found)
    except NeedsRoot as error:
        return exit_code(error)
    except ProphetError as error:
        exit_code(error)
        failed = True
    except KeyboardInterrupt:
        return 130
    if rows:
        print(table(rows))
    if rows and options.name:
        for path in save(rows, options.results, options.name, command):
            print(f"written: {path}")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--cell",
        action="append",
        required=True,
        metavar="PROFILE,KEY=VALUE,...",
        help="profile, then workers, servers, rate, and two of rho, compute (s) and scale; may be repeated",
    )
    parser.add_argument(
        "--methods",
        type=checked(_methods),
        default=list(STANDARD),
        help=f"'all', or of {','.join(METHODS)} (default {','.join(STANDARD)}); settings may follow a name, as in prophet:PROPHET_UNIT=4MB",
    )
    parser.add_argument("--repeats", type=count, default=2, help="jobs per method and cell (default 2)")
    add_job_options(parser)
    parser.add_argument(
        "--max-stolen",
        type=factor(0, 1e3),
        default=0.1,
        metavar="CORES",
        help="processor time that others may take during an undisturbed iteration, in cores (default 0.1)",
    )
    parser.add_argument(
        "--undisturbed",
        type=count,
        default=1,
        metavar="N",
        help="iterations to have undisturbed per method and cell, all workers' together (default 1)",
    )
    parser.add_argument("--tries", type=count, default=1, help="jobs per method and cell, at most, to have them (default: no more)")
    add_output_options(parser)
    parser.add_argument(
        "--timeline", type=Path, metavar="FOLDER", help="keep a trace of every scheduled job's workers, for Perfetto and prophet-mx report"
    )
    parser.add_argument("--raw", type=Path, metavar="FOLDER", help="keep the workers' results, with the time of every operation, as JSON")
    return parser


def add_job_options(parser: argparse.ArgumentParser) -> None:
    """What :func:`run_method` reads."""
    parser.add_argument("--iterations", type=count, default=10, help="measured iterations per job (default 10)")
    parser.add_argument("--warmup", type=count, default=14, help="iterations dropped before them, until orders were exchanged (default 14)")
    parser.add_argument("--timeout", type=duration, default=300, help="seconds a job may take (default 300)")
    parser.add_argument("--lock", type=Path, metavar="FILE", help="hold a lock on this file while a job runs")


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """What :func:`compare` reads."""
    parser.add_argument("--name", help="write NAME.csv and NAME.md")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for them (default benchmarks/results)")


def _methods(text: str) -> List[str]:
    return [parse(name).name for name in (METHODS if text == "all" else text.split(","))]


def run_cell(cell: Cell, methods: Sequence[Method], options: argparse.Namespace) -> List[Row]:
    """Run ``methods`` in turns in one cell and return a row for each that ran; says on stderr which failed, and why.

    Raises
    ------
    NeedsRoot, TestbedError
        the testbed could not be built.
    """
    jobs: Dict[str, List[Job]] = {method.name: [] for method in methods}
    broken = set()
    with Testbed(cell.workers, cell.servers, cell.rate) as bed:
        with turn(options.lock):
            goodput = measure(bed)
        load = cell.load(goodput.link)
        print(
            f"{cell}\n  goodput {goodput}\n  {load.profile.total_bytes / 1e6:.2f} MB, compute "
            f"{load.profile.compute_seconds:.3f} s, rho {load.rho:.3f}, bound {load.bound:.3f} s",
            flush=True,
        )
        if goodput.shortfall(cell.rate):
            print(goodput.shortfall(cell.rate), file=sys.stderr, flush=True)
        for repeat in range(max(options.repeats, options.tries)):
            for method in methods:
                if method.name in broken or repeat >= options.repeats and enough(jobs[method.name], options):
                    continue
                try:
                    job = run_method(
                        bed,
                        cell,
                        load,
                        method,
                        options,
                        _timeline(options.timeline, f"{cell}-{method.name}-{repeat + 1}.json"),
                        bool(options.raw),
                    )
                except TestbedError as error:
                    print(f"error: {method.name}: {error}", file=sys.stderr, flush=True)
                    broken.add(method.name)
                    continue
                jobs[method.name].append(job)
                times = job_times(job, options.warmup)
                quiet = undisturbed_times(job, options.warmup, options.max_stolen)
                print(
                    f"  repeat {repeat + 1}, {method.name}: {statistics.median(times) * 1e3:.0f} ms ({job.stolen.cores():.0%} of a core "
                    f"stolen, {len(quiet)} of {len(times)} iterations undisturbed)",
                    flush=True,
                )
                if options.raw:
                    options.raw.mkdir(parents=True, exist_ok=True)
                    (options.raw / f"{cell}-{method.name}-{repeat + 1}.json").write_text(json.dumps(job.workers))
    return [
        make_row(cell, method.name, load, goodput, jobs[method.name], options.warmup, options.max_stolen)
        for method in methods
        if method.name not in broken
    ]


@contextmanager
def turn(lock: Optional[Path]) -> Iterator[None]:
    """Holds the lock on a file, if one is given. Waits for it without limit."""
    if lock is None:
        yield
        return
    with open(lock, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run_method(
    bed: Testbed, cell: Cell, load: Load, method: Method, options: argparse.Namespace, env: Mapping[str, str], spans: bool = False
) -> Job:
    """Run one job; ``spans`` as in Task. Raises TestbedError."""
    # One more start than iterations, to see the end of the last one.
    task = Task(
        "",
        options.warmup + options.iterations + 1,
        method.wrap,
        method.pushpull,
        spans,
        cell.slowdown,
        cell.jitter or 0.0,
        cell.copy or 0.0,
    )
    with turn(options.lock), Stolen() as stolen:
        return Job(run_job(bed, load.profile, task, {**load.env, **method.env, **env}, options.timeout), stolen)


def enough(jobs: Sequence[Job], options: argparse.Namespace) -> bool:
    """Whether enough iterations were undisturbed."""
    return sum(len(undisturbed_times(job, options.warmup, options.max_stolen)) for job in jobs) >= options.undisturbed


def _timeline(folder: Optional[Path], name: str) -> Dict[str, str]:
    """The setting that makes a job's workers write traces."""
    if folder is None:
        return {}
    folder.mkdir(parents=True, exist_ok=True)
    return {"PROPHET_TIMELINE": str(folder.resolve() / name)}


if __name__ == "__main__":
    sys.exit(main())
