"""Compare all-reduces on the testbed: PyTorch's DistributedDataParallel and ScheduledOptimizer over shaped links; needs root and PyTorch.

    python -m benchmarks.collectives --cell resnet50_v1,ranks=2,rho=1,compute=0.15,rate=1Gbit

A cell's model is a profile with emulated compute, in one or both of two kinds (``--kinds device,cpu``; testbed/emulated_torch.py), or
real training of a small residual network (``--cell real,ranks=2,rate=1Gbit``). Gradients are ready operation by operation; with
``ready=steps`` in a cell, in the steps of the profile, many at once. Warm-up iterations are dropped. Every reduced gradient is
checked on an emulated device. On the processor all ranks must end with the same weights, bit for bit, and so must all methods without
compression, but for real training with more than two ranks: the order of summation differs there. The bound is that of gradients sent
whole, so methods with bf16 have none. Rounds, jobs that are set aside, and where results are written are as with benchmarks.run.
The exit code is 1 if a job failed, a value was wrong, or a method was faster than the bound; 3 without the privileges that namespaces need.
"""

import argparse
import statistics
import sys
from functools import partial
from typing import Dict, List, Optional, Sequence

from prophet_mx.cli.arguments import checked
from prophet_mx.errors import ProphetError

from .comparison.cells import Load
from .comparison.command import CellOfJobs, Kept, Session, add_comparison_options, compare, protocol, turn
from .comparison.metadata import describe
from .comparison.rings import KINDS, REAL, STANDARD, RingCell, RingMethod, parse
from .comparison.rows import JobRow, MeasuredJob
from .testbed import Testbed, measure
from .testbed.exits import exit_code
from .testbed.ranks import RankTask, run_ranks


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; see the top of this file. Returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(arguments)

    try:
        methods = [parse(name) for name in options.methods]
        cells = [RingCell.parse(text, kind) for text in options.cell for kind in (["cpu"] if text.split(",")[0] == REAL else options.kinds)]
    except ProphetError as error:
        return exit_code(error)

    found = [CellOfJobs(str(cell), cell.kind, partial(run_cell, cell, methods, options)) for cell in cells]
    asked = protocol(options, list(dict.fromkeys(map(str, cells))), options.methods)
    return compare(found, options, "collectives", {**describe("collectives", arguments, "PyTorch", "torch"), **asked})


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.collectives", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--cell",
        action="append",
        required=True,
        metavar="PROFILE,KEY=VALUE,...",
        help="profile (or 'real'), then ranks, rate, slow, jitter, and two of rho, compute (s) and scale; may be repeated",
    )
    parser.add_argument("--kinds", type=checked(_kinds), default=list(KINDS), help="one or both of device,cpu (default both)")
    parser.add_argument("--methods", type=checked(_methods), default=list(STANDARD), help=f"default {','.join(STANDARD)}")
    add_comparison_options(parser)
    return parser


def _methods(text: str) -> List[str]:
    return [parse(name).name for name in text.split(",")]


def _kinds(text: str) -> List[str]:
    kinds = text.split(",")
    if not set(kinds) <= set(KINDS):
        raise ValueError(f"the kinds are {', '.join(KINDS)}")
    return kinds


def run_cell(cell: RingCell, methods: Sequence[RingMethod], options: argparse.Namespace, kept: Kept) -> List[JobRow]:
    """Run a round of ``methods`` in one cell and return its rows."""
    known = {method.name: method for method in methods}
    with Testbed(cell.ranks, 1, cell.cell.rate) as bed:
        session = Session(str(cell), cell.kind, cell.cell.rate, lambda: measure(bed), options, kept)
        load = cell.load(session.goodput.link)
        if load is not None:
            print(f"  {load.profile.total_bytes / 1e6:.2f} MB, rho {load.rho:.3f}, bound {load.bound:.4f} s", flush=True)
        attempts = session.attempts(list(known), lambda name: run_method(bed, cell, load, known[name], options))
    if cell.kind == "cpu" and (load or cell.ranks == 2):  # the stamps' sums are exact, and so are those of two
        jobs: Dict[str, List[MeasuredJob]] = {}
        for attempt in attempts:
            if attempt.job is not None:
                jobs.setdefault(attempt.method, []).append(attempt.job)
        _check_weights(jobs)
    rows = session.rows(attempts, load)
    return [row._replace(bound_ms=None, time_over_bound=None) if known[row.method].bf16 else row for row in rows]


def run_method(bed: Testbed, cell: RingCell, load: Optional[Load], method: RingMethod, options: argparse.Namespace) -> MeasuredJob:
    """Run one job. Raises TestbedError."""
    # One more start than iterations, to see the end of the last one.
    iterations = options.warmup + options.iterations + 1
    device = cell.kind == "device"
    slowdown, jitter = cell.cell.slowdown, cell.cell.jitter or 0.0
    task = RankTask("", device, method.scheduled, method.bucket, method.bf16, iterations, slowdown, jitter, method.clip)
    with turn(options.lock):
        return MeasuredJob(run_ranks(bed, load and load.profile, task, method.env, options.timeout))


def _check_weights(jobs: Dict[str, List[MeasuredJob]]) -> None:
    """Count it as a wrong value where a rank's weights differ from those of most jobs of the cell without compression."""
    exact = [result for name, ran in jobs.items() if "bf16" not in name for job in ran for result in job.workers]
    if exact:
        right = statistics.mode(result["weights"] for result in exact)
        for result in exact:
            result["wrong"] += int(result["weights"] != right)


if __name__ == "__main__":
    sys.exit(main())
