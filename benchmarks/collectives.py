"""Compare all-reduces on the testbed: PyTorch's DistributedDataParallel and ScheduledOptimizer over shaped links; needs root and PyTorch.

    python -m benchmarks.collectives --cell resnet50_v1,ranks=2,rho=1,compute=0.15,rate=1Gbit --repeats 3

A cell's model is a profile with emulated compute, in one or both of two kinds (``--kinds device,cpu``; testbed/emulated_torch.py), or
real training of a small residual network (``--cell real,ranks=2,rate=1Gbit``). Gradients are ready operation by operation; with
``ready=steps`` in a cell, in the steps of the profile, many at once. The methods of a cell take turns, in another random order at
each turn, so that what happens on the machine meanwhile meets all of them. Warm-up iterations are dropped. Every reduced gradient is
checked on an emulated device. On the processor all ranks must end with the same weights, bit for bit, and so must all methods without
compression, but for real training with more than two ranks: the order of summation differs there.
The exit code is 1 if a job failed or a value was wrong, 3 without the privileges that namespaces need.
"""

import argparse
import random
import shlex
import statistics
import sys
from itertools import groupby
from typing import Dict, Iterator, List, Optional, Sequence, Set

from prophet_mx.cli.arguments import checked, count

from .comparison.cells import Load
from .comparison.rings import KINDS, REAL, STANDARD, RingCell, RingMethod, RingRow, make_rows, markdown, parse, write
from .comparison.rows import Job, job_times
from .comparison.stolen import Stolen
from .run import add_job_options, add_output_options, compare, turn
from .testbed import Testbed, TestbedError, measure
from .testbed.goodput import Goodput
from .testbed.ranks import RankTask, run_ranks

MAX_STOLEN = 0.1  # cores, in an undisturbed iteration


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; see the top of this file. Returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(arguments)

    def found() -> Iterator[List[RingRow]]:
        methods = [parse(name) for name in options.methods]
        cells = [RingCell.parse(text, kind) for text in options.cell for kind in (["cpu"] if text.split(",")[0] == REAL else options.kinds)]
        for (ranks, rate), members in groupby(cells, key=lambda cell: (cell.ranks, cell.cell.rate)):
            with Testbed(ranks, 1, rate) as bed:
                with turn(options.lock):
                    goodput = measure(bed)
                print(f"{ranks} ranks: goodput {goodput} {goodput.shortfall(rate)}", flush=True)
                for cell in members:
                    yield run_cell(bed, goodput, cell, methods, options)

    command = shlex.join(["python", "-m", "benchmarks.collectives"] + arguments)
    return compare(found(), len(options.methods), options, command, markdown, write)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.collectives", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--cell",
        action="append",
        required=True,
        metavar="PROFILE,KEY=VALUE,...",
        help="profile (or 'real'), then ranks, rate, slow, jitter, and two of rho, compute (s) and scale; may be repeated",
    )
    parser.add_argument("--kinds", type=checked(_kinds), default=list(KINDS), help="of device,cpu (default both)")
    parser.add_argument("--methods", type=checked(_methods), default=list(STANDARD), help=f"default {','.join(STANDARD)}")
    parser.add_argument("--repeats", type=count, default=1, help="jobs per method and cell (default 1)")
    add_job_options(parser)
    parser.add_argument("--seed", type=int, default=0, help="of the order of the methods (default 0)")
    add_output_options(parser)
    return parser


def _methods(text: str) -> List[str]:
    return [parse(name).name for name in text.split(",")]


def _kinds(text: str) -> List[str]:
    kinds = text.split(",")
    if not set(kinds) <= set(KINDS):
        raise ValueError(f"the kinds are {', '.join(KINDS)}")
    return kinds


def run_cell(bed: Testbed, goodput: Goodput, cell: RingCell, methods: Sequence[RingMethod], options: argparse.Namespace) -> List[RingRow]:
    """Run ``methods`` in turns in one cell and return a row for each that ran; says on stderr which failed, and why."""
    load = cell.load(goodput.link)
    if load is None:
        print(f"{cell}: real training", flush=True)
    else:
        print(f"{cell}, {cell.kind}: {load.profile.total_bytes / 1e6:.2f} MB, rho {load.rho:.3f}, bound {load.bound:.4f} s", flush=True)
    jobs: Dict[str, List[Job]] = {method.name: [] for method in methods}
    broken: Set[str] = set()
    order = random.Random(options.seed)
    for repeat in range(options.repeats):
        for method in order.sample(methods, len(methods)):
            if method.name in broken:
                continue
            try:
                job = run_method(bed, cell, load, method, options)
            except TestbedError as error:
                print(f"error: {method.name}: {error}", file=sys.stderr, flush=True)
                broken.add(method.name)
                continue
            jobs[method.name].append(job)
            times = job_times(job, options.warmup)
            stolen = job.stolen.cores()
            print(f"  {repeat + 1}, {method.name}: {statistics.median(times) * 1e3:.1f} ms ({stolen:.0%} of a core stolen)", flush=True)
    ran = {name: found for name, found in jobs.items() if name not in broken}
    if cell.kind == "cpu" and (load or cell.ranks == 2):  # the stamps' sums are exact, and so are those of two
        _check_weights(ran)
    return make_rows(cell, load, goodput, ran, options.warmup, MAX_STOLEN) if ran else []


def run_method(bed: Testbed, cell: RingCell, load: Optional[Load], method: RingMethod, options: argparse.Namespace) -> Job:
    """Run one job. Raises TestbedError."""
    # One more start than iterations, to see the end of the last one.
    iterations = options.warmup + options.iterations + 1
    device = cell.kind == "device"
    slowdown, jitter = cell.cell.slowdown, cell.cell.jitter or 0.0
    task = RankTask("", device, method.scheduled, method.bucket, method.bf16, iterations, slowdown, jitter)
    with turn(options.lock), Stolen() as stolen:
        return Job(run_ranks(bed, load and load.profile, task, method.env, options.timeout), stolen)


def _check_weights(jobs: Dict[str, List[Job]]) -> None:
    """Count it as a wrong value where a rank's weights differ from those of most jobs of the cell without compression."""
    exact = [result for name, ran in jobs.items() if "bf16" not in name for job in ran for result in job.workers]
    if exact:
        right = statistics.mode(result["weights"] for result in exact)
        for result in exact:
            result["wrong"] += int(result["weights"] != right)


if __name__ == "__main__":
    sys.exit(main())
