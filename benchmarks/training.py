"""Compare methods in real training: networks that a script of the examples trains on the processor, over shaped links; needs root.

    python -m benchmarks.training --cell resnet18_v1,rate=2Gbit --cell mobilenet1.0,rate=1Gbit

Nothing is emulated but the network. Workers run examples/mxnet-image-classification/train_imagenet.py on pictures of 32 x 32 that
make_images.py draws, in ten classes, with a thread each; servers update the weights. A cell is a network of MXNet's model zoo with workers,
servers and rate. First its workers train by themselves, all at once and without a store: that is the processor's compute time, of which
and of the links' goodput rho follows. The methods then run as with benchmarks.run: in rounds, with one rule for setting jobs aside.

All jobs of a cell must end with the same weights and running statistics on every worker, bit for bit: the first that does not ends the
command. The accuracy is that of the measured iterations, before each of them learns from its images; 10% of them are guessed.
The exit code is 1 if a job failed or weights differ; 3 without the privileges that namespaces need.
"""

import argparse
import hashlib
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from prophet_mx.cli.arguments import checked, count
from prophet_mx.errors import ConfigError, ProphetError
from prophet_mx.planning.bound import worker_rate

from .comparison.cells import Cell
from .comparison.command import CellOfJobs, Kept, Session, add_comparison_options, compare, protocol, turn
from .comparison.metadata import ROOT, describe
from .comparison.methods import Method, parse
from .comparison.rows import Attempt, JobRow, MeasuredJob
from .comparison.trainings import Log, Weights
from .testbed import Testbed, TestbedError, measure
from .testbed.exits import exit_code
from .testbed.job import ProcessorClock, plain_environment, run_cluster, run_processes

SCRIPTS = ROOT / "examples" / "mxnet-image-classification"
STANDARD = ("pushpull", "p3", "credit", "prophet")
ALONE = "alone"  # how a job without a store is called in what is printed
CLASSES, PICTURES = 10, 40  # of each class
RATE = 0.02  # of learning
WEIGHTS = "weights"  # files with this prefix


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; see the top of this file. Returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(arguments)
    methods = [parse(name) for name in options.methods]
    try:
        cells = [parse_cell(text) for text in options.cell]
    except ProphetError as error:
        return exit_code(error)

    about = {**describe("training", arguments), **protocol(options, [str(cell) for cell in cells], options.methods)}
    with tempfile.TemporaryDirectory(prefix="prophet-bench-") as folder:
        try:
            images = draw(Path(folder))
        except ProphetError as error:
            return exit_code(error)
        found = [CellOfJobs(str(cell), "", partial(run_cell, cell, methods, images, options)) for cell in cells]
        return compare(found, options, "training", about)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--cell",
        action="append",
        required=True,
        metavar="NETWORK,KEY=VALUE,...",
        help="a network of MXNet's model zoo, then workers, servers and rate; may be repeated",
    )
    parser.add_argument(
        "--methods", type=checked(methods_of_scripts), default=list(STANDARD), help=f"as for benchmarks.run (default {','.join(STANDARD)})"
    )
    parser.add_argument("--batch-size", type=count, default=32, help="images of a worker per iteration (default 32)")
    add_comparison_options(parser)
    return parser


def parse_cell(text: str) -> Cell:
    """A cell of a network as it is. Raises ConfigError."""
    cell = Cell.parse(text)
    if cell.workers > 2:
        raise ConfigError(
            f"cell {text!r}: {cell.workers} workers are not allowed; allowed: 1 or 2, whose sums have the same bits in any order"
        )
    if cell != Cell(cell.profile, cell.workers, cell.servers, cell.rate):
        raise ConfigError(f"cell {text!r}: a network that is trained takes workers, servers and rate; its compute and sizes are its own")
    return cell


def methods_of_scripts(text: str) -> List[str]:
    methods = [parse(name) for name in text.split(",")]
    for method in methods:
        if not method.pushpull:
            raise ConfigError(f"{method.name!r} is not allowed: the script trains by pushpull")
    return [method.name for method in methods]


def draw(folder: Path) -> Path:
    """Draw the pictures and pack them; the path of the RecordIO file. Raises TestbedError."""
    commands = (
        ["make_images.py", str(folder / "pictures"), "--classes", str(CLASSES), "--per-class", str(PICTURES), "--side", "36"],
        ["make_rec.py", str(folder / "pictures"), str(folder / "images"), "--resize", "36"],
    )
    for script, *words in commands:
        command = [sys.executable, str(SCRIPTS / script), *words]
        done = subprocess.run(command, env=plain_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            raise TestbedError(f"{script} ended with {done.returncode}\n{done.stdout}")
    return folder / "images.rec"


def run_cell(cell: Cell, methods: Sequence[Method], images: Path, options: argparse.Namespace, kept: Kept) -> List[JobRow]:
    """Run a round of ``methods`` in one cell and return its rows. Raises WeightsDifferError, NeedsRoot and TestbedError."""
    known = {method.name: method for method in methods}
    weights = Weights(str(cell), kept.found)
    with Testbed(cell.workers, cell.servers, cell.rate) as bed:
        session = Session(str(cell), "", cell.rate, lambda: measure(bed), options, kept)
        compute = compute_once(session, lambda name: train(bed, cell, None, images, options), options, kept)

        def run(name: str) -> MeasuredJob:
            job = train(bed, cell, known[name], images, options)
            weights.check(name, job.workers[0]["weights"])
            return job

        attempts = session.attempts(list(known), run)
        rows = session.rows(attempts, None)
    rate = worker_rate(session.goodput.link, cell.workers, cell.servers)
    return [trained(row, attempt, compute, rate) for row, attempt in zip(rows, attempts)]


def compute_once(session: Session, run: Callable[[str], MeasuredJob], options: argparse.Namespace, kept: Kept) -> float:
    """Seconds of an iteration without a store, which the first round measures. Raises TestbedError."""
    if "compute" not in kept.found:
        kept.found["compute"] = compute_seconds(session.attempts([ALONE], run), options)
    return float(kept.found["compute"])


def compute_seconds(attempts: Sequence[Attempt], options: argparse.Namespace) -> float:
    """Of an iteration, from jobs without a store. Raises TestbedError if they failed."""
    for attempt in attempts:
        if not attempt.aside and attempt.job is not None:
            return statistics.median(attempt.job.times(options.warmup))
    raise TestbedError(f"training without a store {attempts[-1].aside}")


def trained(row: JobRow, attempt: Attempt, compute: float, rate: float) -> JobRow:
    """A job's row with what is told of training alone. ``compute``: seconds of an iteration; ``rate``: a worker's bytes/s."""
    if attempt.job is None:
        return row
    workers = attempt.job.workers
    return row._replace(
        compute_ms=round(compute * 1e3, 1),
        rho=round(workers[0]["bytes"] / rate / compute, 3),
        megabytes=round(workers[0]["bytes"] / 1e6, 2),
        images=sum(worker["images"] for worker in workers),
        accuracy=round(statistics.fmean(worker["accuracy"] for worker in workers), 4),
        weights=workers[0]["weights"],
    )


def train(bed: Testbed, cell: Cell, method: Optional[Method], images: Path, options: argparse.Namespace) -> MeasuredJob:
    """Run one job; without a method, one in which every worker trains for itself. Raises TestbedError."""
    return run_script(bed, script(cell, method, images, options), method, options)


def run_script(
    bed: Testbed,
    command: List[str],
    method: Optional[Method],
    options: argparse.Namespace,
    env: Optional[Mapping[str, str]] = None,
    with_weights: bool = True,
) -> MeasuredJob:
    """Run a job whose workers run ``command``, with ``env`` for all processes; ``with_weights``: the workers write theirs in the end."""
    labels = [f"w{number}" for number in range(bed.workers)]
    with turn(options.lock), tempfile.TemporaryDirectory(prefix="prophet-bench-") as folder:
        if method is None:
            clocks = {"worker": ProcessorClock(labels)}
            processes = {label: (label, command, {**plain_environment(), **(env or {})}) for label in labels}
            run_processes(bed, processes, folder, options.timeout, list(clocks.values()))
        else:
            clocks = run_cluster(bed, [command] * bed.workers, folder, {**(env or {}), **method.env}, options.timeout)
        logs = [Path(folder, f"{label}.log").read_text(encoding="utf-8", errors="replace") for label in labels]
        files = sorted(Path(folder).glob(f"{WEIGHTS}*.params"))
        found = [worker_result(log, method, clocks, bed.workers, options) for log in logs]
        if method is not None and with_weights:
            found = [{**result, **of_weights(files, bed.workers)} for result in found]
    return MeasuredJob(found)


def script(cell: Cell, method: Optional[Method], images: Path, options: argparse.Namespace) -> List[str]:
    """The command of a worker. It says when a batch has ended from the second on, and another one ends the last that is measured."""
    batches = options.warmup + options.iterations + 2
    workers = 1 if method is None else cell.workers
    settings = {
        "--network": cell.profile,
        "--num-classes": CLASSES,
        "--image-shape": "3,32,32",
        "--data-train": images,
        "--data-nthreads": 1,
        "--batch-size": options.batch_size,
        "--num-examples": options.batch_size * workers * batches,
        "--num-epochs": 1,
        "--lr": RATE,
        "--top-k": 0,
        "--disp-batches": 1,
        "--kv-store": "local" if method is None else "dist_sync",
    }
    words = [str(word) for pair in settings.items() for word in pair]
    if method is not None:
        words += ["--update-on", "servers", "--model-prefix", WEIGHTS] + ([] if method.wrap else ["--policy", "off"])
    return [sys.executable, str(SCRIPTS / "train_imagenet.py"), *words]


def worker_result(
    text: str, method: Optional[Method], clocks: Dict[str, ProcessorClock], workers: int, options: argparse.Namespace
) -> Dict[str, Any]:
    """A worker's part of a :class:`MeasuredJob`, from its log. Raises TestbedError if that is not as expected."""
    log = Log.read(text)
    policy = method.env["PROPHET_POLICY"] if method is not None and method.wrap else "off"
    expected = options.warmup + options.iterations + 1
    if len(log.ends) != expected or log.policy != policy:
        told = f"a worker told of {len(log.ends)} batches and policy {log.policy}, not of {expected} and {policy}"
        raise TestbedError(f"{told}\n{text[-4000:]}")
    since_boot = time.monotonic() - time.time()
    starts = [end + since_boot for end in log.ends]
    used = {role: clock.at(starts[-1]) - clock.at(starts[0]) for role, clock in clocks.items()}
    return {
        "starts": starts,
        "accuracy": statistics.fmean(log.accuracies[options.warmup + 1 :]),
        "images": options.batch_size,
        "bytes": log.bytes,
        "wrong": 0,
        "wall_seconds": starts[-1] - starts[0],
        "cpu_seconds": used["worker"] / workers,
        **({"server_cpu_seconds": used["server"]} if "server" in used else {}),
    }


def of_weights(files: Sequence[Path], workers: int) -> Dict[str, Any]:
    """A hash of the workers' weights and statistics, and the bytes of one file, of which headers and statistics are a hundredth."""
    if len(files) != workers:
        raise TestbedError(f"{len(files)} of {workers} workers wrote their weights")
    return {"weights": hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest(), "bytes": files[0].stat().st_size}


if __name__ == "__main__":
    sys.exit(main())
