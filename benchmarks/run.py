"""Compare methods on the testbed: real MXNet jobs, shaped links, emulated compute; needs root.

    python -m benchmarks.run --cell resnet50_v1,rho=1,workers=2,servers=1,rate=1Gbit

Jobs run in rounds. In a round each cell gets a testbed of its own, the links' goodput is measured, and then every method runs once, in a
random order (``--seed``), so that what happens on the machine meanwhile meets all of them. A job before which the links gave less than 90%
of their rate is set aside and run again, up to ``--tries`` times, whatever its method and its time; so is one that failed. All of them are
in the CSV file. Warm-up iterations are dropped.
Every value that a worker pulls is checked. Other work on the machine that shall not run beside a job can take turns with the jobs: ``--lock
FILE`` (and ``flock FILE command``).

Writes to benchmarks/scratch; ``--publish QUESTION`` also replaces what benchmarks/results has.
The exit code is 1 if a job failed, a value was wrong, or a method was faster than the bound; 3 without the privileges that namespaces need.
"""

import argparse
import json
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence

from prophet_mx.cli.arguments import checked
from prophet_mx.errors import ProphetError

from .comparison.cells import Cell, Load
from .comparison.command import CellOfJobs, Kept, Session, add_comparison_options, compare, protocol, turn
from .comparison.metadata import describe
from .comparison.methods import METHODS, STANDARD, Method, parse
from .comparison.rows import JobRow, MeasuredJob
from .comparison.tuning import short, tuned
from .testbed import Testbed, measure
from .testbed.emulated import Task
from .testbed.exits import exit_code
from .testbed.job import run_job
from .testbed.network import Shape

UNITS = (64_000, 128_000, 256_000, 512_000)  # that --tune tries, bytes


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; see the top of this file. Returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(arguments)
    try:
        cells = [Cell.parse(text) for text in options.cell]
    except ProphetError as error:
        return exit_code(error)
    methods = [parse(name) for name in options.methods]
    found = [CellOfJobs(str(cell), "", partial(run_cell, cell, methods, options)) for cell in cells]
    return compare(
        found, options, "run", {**describe("run", arguments), **protocol(options, [cell.cell for cell in found], options.methods)}
    )


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--cell",
        action="append",
        required=True,
        metavar="PROFILE,KEY=VALUE,...",
        help="profile, then workers, servers, rate, two of rho, compute (s) and scale, and of the network slowed, ports, hosts, "
        "congestion; comparison/cells.py says what they are; may be repeated",
    )
    parser.add_argument(
        "--methods",
        type=checked(_methods),
        default=list(STANDARD),
        help=f"'all', or of {','.join(METHODS)} (default {','.join(STANDARD)}); settings may follow a name, as in prophet:PROPHET_UNIT=4MB",
    )
    parser.add_argument("--tune", choices=("credit",), help="also run it with the unit and credit that short jobs find to be its best")
    add_comparison_options(parser)
    parser.add_argument(
        "--timeline", type=Path, metavar="FOLDER", help="keep a trace of every scheduled job's workers, for Perfetto and prophet-mx report"
    )
    parser.add_argument("--raw", type=Path, metavar="FOLDER", help="keep the workers' results, with the time of every operation, as JSON")
    return parser


def _methods(text: str) -> List[str]:
    return [parse(name).name for name in (METHODS if text == "all" else text.split(","))]


def run_cell(cell: Cell, methods: Sequence[Method], options: argparse.Namespace, kept: Kept) -> List[JobRow]:
    """Run a round of ``methods`` in one cell and return its rows. Raises NeedsRoot and TestbedError if the testbed could not be built."""
    known = {method.name: method for method in methods}
    tried: Dict[str, int] = {}
    with testbed(cell) as bed:
        session = Session(str(cell), "", cell.link_rate, lambda: measure(bed), options, kept)
        load = cell.load(session.goodput.link)
        print(
            f"  {load.profile.total_bytes / 1e6:.2f} MB, compute {load.profile.compute_seconds:.3f} s, rho {load.rho:.3f}, "
            f"bound {load.bound:.3f} s",
            flush=True,
        )
        if options.tune:
            if "best" not in kept.found:
                shorter = short(options)
                kept.found["best"] = [tuned(options.tune, UNITS, lambda method: run_method(bed, cell, load, method, shorter, {}))]
            known.update({name: parse(name) for name in kept.found["best"]})

        def run(name: str) -> MeasuredJob:
            tried[name] = tried.get(name, 0) + 1
            file = f"{cell}-{name}-{kept.number}.{tried[name]}.json"
            job = run_method(bed, cell, load, known[name], options, _timeline(options.timeline, file), bool(options.raw))
            if options.raw:
                options.raw.mkdir(parents=True, exist_ok=True)
                (options.raw / file).write_text(json.dumps(job.workers))
            return job

        return session.rows(session.attempts(list(known), run), load)


def testbed(cell: Cell) -> Testbed:
    """The machines and links of a cell. Where it is slowed down, queues and bursts keep their bytes, and so last longer."""
    shape = replace(Shape.for_rate(cell.rate), rate=cell.link_rate)
    if cell.ports:
        shape = shape.with_queue(int(cell.ports))
    hosts = shape.holding() if cell.hosts == "hold" else shape
    return Testbed(cell.workers, cell.servers, cell.link_rate, shape, cell.congestion or "cubic", hosts)


def run_method(
    bed: Testbed, cell: Cell, load: Load, method: Method, options: argparse.Namespace, env: Mapping[str, str], spans: bool = False
) -> MeasuredJob:
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
        cell.update == "servers" and not method.name.startswith("p3"),
        cell.keys == "names",
    )
    with turn(options.lock):
        before = bed.losses()
        launched = time.monotonic()
        workers = run_job(bed, load.profile, task, {**load.env, **method.env, **env}, options.timeout)
        lost = bed.losses().since(before)
    return MeasuredJob([{**worker, "launch_seconds": worker["begin"] - launched, "losses": lost._asdict()} for worker in workers])


def _timeline(folder: Optional[Path], name: str) -> Dict[str, str]:
    """The setting that makes a job's workers write traces."""
    if folder is None:
        return {}
    folder.mkdir(parents=True, exist_ok=True)
    return {"PROPHET_TIMELINE": str(folder.resolve() / name)}


if __name__ == "__main__":
    sys.exit(main())
