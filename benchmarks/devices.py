"""Compare methods in training on emulated GPUs: real scripts, networks of full size, over shaped links; needs root and 'make cuda'.

    .venv-cuda/bin/python -m benchmarks.devices --cell resnet50_v1,batch=64,device=v100,rate=3Gbit --tune credit

Workers run a script with MXNet's CUDA build on the emulated CUDA runtime: engine, streams, copies and pinned memory are MXNet's own, and a
device takes the time of its work. Arithmetic is missing, so nothing is learned. The scripts are train_imagenet.py of
examples/mxnet-image-classification, with ``script=gluon`` train_gluon.py, with ``script=transformer`` benchmarks/jobs/transformer.py. Of
those with Trainer the keys are as it numbers what ``collect_params()`` gives: by name. A cell is a network with batch, device, rate,
workers, servers and script; ``side`` is the height and width of its images. Servers update the weights, by SGD with momentum. P3 cannot
do that: with p3 the workers update them. The methods run as with benchmarks.training.

``--tune credit`` first looks for its best unit and credit, with a short job for each, and then runs it with them as a further method.
``--learn`` keeps the profile that a job of prophet has learned, in the result's metadata.
``--only TEXT`` runs the cells alone that have all words of TEXT; with ``--publish`` the others stay as they are published.

The table says what share of the machine's cores the processes of a job took. Over 80% the processor decides with the network.
The exit code is 1 if a job failed; 3 without the privileges that namespaces need.
"""

import argparse
import math
import os
import statistics
import sys
import tempfile
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from prophet_mx.cli.arguments import checked
from prophet_mx.errors import ConfigError, ProphetError, not_allowed
from prophet_mx.planning.bound import worker_rate
from prophet_mx.profiling.gradient_profile import GradientProfile

from .comparison.cells import Cell
from .comparison.command import Session, add_comparison_options, compare, protocol
from .comparison.metadata import ROOT, describe
from .comparison.methods import Method, parse
from .comparison.rows import JobRow, MeasuredJob
from .comparison.trainings import KIND_OF_DEVICES as KIND
from .questions import QUESTIONS
from .testbed import Testbed, TestbedError, measure
from .testbed.cuda import environment
from .testbed.exits import exit_code
from .training import ALONE, SCRIPTS, STANDARD, compute_seconds, methods_of_scripts, run_script

DEVICES = ("m60", "v100", "a100")
COMMANDS = {
    "module": [str(SCRIPTS / "train_imagenet.py")],
    "gluon": [str(SCRIPTS / "train_gluon.py"), "--keys", "names"],
    "transformer": [str(ROOT / "benchmarks" / "jobs" / "transformer.py")],
}
OWN = ("batch", "device", "script", "side")  # settings of a cell that are no cluster's
# The units that a search tries, first each with FIRST of them unanswered, and then the best of them with so many.
UNITS, FIRST, NUMBERS = (250_000, 500_000, 1_000_000, 2_000_000), 4, (2, 8)
SHORT = {"warmup": 5, "iterations": 6}  # of a search's jobs


class DeviceCell(NamedTuple):
    """A network, its cluster, and how it is trained. ``side``: of its images, in pixels."""

    cluster: Cell
    batch: int = 32
    device: str = "v100"
    script: str = "module"
    side: int = 224

    @classmethod
    def parse(cls, text: str) -> "DeviceCell":
        """The cell of a text as above. Raises ConfigError."""
        own: Dict[str, str] = {}
        others = []
        for part in text.split(","):
            name, _, value = part.strip().partition("=")
            if name in OWN:
                own[name] = value
            else:
                others.append(part)
        for name, allowed in (("device", DEVICES), ("script", tuple(COMMANDS))):
            if own.get(name, allowed[0]) not in allowed:
                raise ConfigError(not_allowed(f"cell {text!r}: {name}={own[name]}", ", ".join(allowed)))
        for name in ("batch", "side"):
            if not own.get(name, "1").isdecimal() or int(own.get(name, "1")) < 1:
                raise ConfigError(not_allowed(f"cell {text!r}: {name}={own[name]}", "a whole number from 1"))
        cluster = Cell.parse(",".join(others))
        if cluster != Cell(cluster.profile, cluster.workers, cluster.servers, cluster.rate):
            raise ConfigError(
                f"cell {text!r}: allowed are {', '.join(OWN)}, rate, workers and servers; compute and sizes are the network's"
            )
        side = int(own.get("side", "299" if cluster.profile.startswith("inception") else "224"))
        return cls(cluster, int(own.get("batch", "32")), own.get("device", "v100"), own.get("script", "module"), side)

    def __str__(self) -> str:
        network, rest = str(self.cluster).split(",", 1)
        usual = DeviceCell.parse(network).side
        side = "" if self.side == usual else f",side={self.side}"
        return f"{network},batch={self.batch},device={self.device},script={self.script}{side},{rest}"


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; see the top of this file. Returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(arguments)
    try:
        cells = [DeviceCell.parse(text) for text in options.cell]
        wanted = chosen(cells, options.only)
        if options.only and options.publish and options.publish not in QUESTIONS:
            raise ConfigError(not_allowed(f"--publish {options.publish}", "a name of benchmarks.questions --list", " with --only"))
        env = environment()
    except ProphetError as error:
        return exit_code(error)
    about: Dict[str, Any] = {
        **describe("devices", arguments, "MXNet", "mxnet-cu112"),
        **protocol(options, [str(cell) for cell in cells], options.methods, {}),
        "profiles": {},
    }
    if options.only:
        about["only"] = [str(cell) for cell in wanted]

    def found() -> Iterator[List[JobRow]]:
        for cell in wanted:
            yield run_cell(cell, [parse(name) for name in options.methods], env, options, about)

    return compare(found(), options, "devices", about)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.devices", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cell", action="append", required=True, metavar="NETWORK,KEY=VALUE,...", help="as above; may be repeated")
    parser.add_argument(
        "--methods", type=checked(methods_of_scripts), default=list(STANDARD), help=f"as for benchmarks.run (default {','.join(STANDARD)})"
    )
    parser.add_argument("--tune", choices=("credit",), help="also run it with the unit and credit that are found to be its best")
    parser.add_argument("--learn", action="store_true", help="also keep the profile that a job has learned")
    parser.add_argument("--only", metavar="TEXT", help="of the cells only those with these words, as resnet50_v1,device=m60")
    add_comparison_options(parser)
    return parser


def chosen(cells: Sequence[DeviceCell], only: Optional[str]) -> List[DeviceCell]:
    """The cells that have all words of ``only``. Raises ConfigError if none has."""
    words = set(only.split(",")) if only else set()
    found = [cell for cell in cells if words <= set(str(cell).split(","))]
    if not found:
        raise ConfigError(f"--only {only} is not allowed: no cell has these words; the cells are " + ", ".join(map(str, cells)))
    return found


def run_cell(
    cell: DeviceCell, methods: Sequence[Method], env: Dict[str, str], options: argparse.Namespace, about: Dict[str, Any]
) -> List[JobRow]:
    """Run the jobs of ``methods`` in one cell and return a row for each. What was searched and learned is added to ``about``, the result's
    metadata. Raises NeedsRoot, TestbedError and ProfileError."""
    known: Dict[str, Method] = {method.name: method for method in methods}
    options = argparse.Namespace(**{**vars(options), "batch_size": cell.batch})
    short = argparse.Namespace(**{**vars(options), **SHORT})
    cluster = cell.cluster
    env = {**env, "EMULATED_CUDA_DEVICE": cell.device, "EMULATED_CUDA_COUNT": "1"}
    with Testbed(cluster.workers, cluster.servers, cluster.rate) as bed:
        session = Session(str(cell), KIND, cluster.rate, lambda: measure(bed), options)

        def train(method: Optional[Method], protocol: argparse.Namespace) -> MeasuredJob:
            return run_script(bed, script(cell, method, protocol), method, protocol, env, with_weights=False)

        def try_out(name: str) -> float:
            try:
                time = statistics.median(train(parse(name), short).times(short.warmup)) * 1e3
            except TestbedError as error:
                print(f"error: search, {name}: {error}", file=sys.stderr, flush=True)
                return math.inf
            print(f"  search, {name}: {time:.1f} ms", flush=True)
            return time

        compute = compute_seconds(session.attempts([ALONE], lambda name: train(None, options), repeats=1), options)
        if options.tune:
            found = search(options.tune, try_out)
            known[found] = parse(found)
            about["best"][str(cell)] = [found]
        if options.learn:
            learned = learn(lambda method: train(method, short))
            about["profiles"][str(cell)] = {"compute": round(compute, 4), "profile": learned.to_json()}
        attempts = session.attempts(list(known), lambda name: train(known[name], options))
        rows = session.rows(attempts, None)
    rate = worker_rate(session.goodput.link, cluster.workers, cluster.servers)
    size = max((attempt.job.workers[0]["bytes"] for attempt in attempts if attempt.job is not None), default=0)
    return [row if attempt.job is None else of_device(row, compute, size, rate, cell) for row, attempt in zip(rows, attempts)]


def learn(train: Callable[[Method], MeasuredJob]) -> GradientProfile:
    """The profile that a job of prophet saves."""
    with tempfile.TemporaryDirectory(prefix="prophet-bench-") as folder:
        file = os.path.join(folder, "profile.json")
        train(parse(f"prophet:PROPHET_PROFILE={file}"))
        return GradientProfile.load(file)


def search(method: str, try_out: Callable[[str], float]) -> str:
    """The method with the unit and the unanswered bytes of which a job takes the least time."""
    times: Dict[str, float] = {}

    def best_of(pairs: Sequence[Tuple[int, int]]) -> Tuple[int, int]:
        names = {f"{method}:PROPHET_UNIT={unit}:PROPHET_LEAD={unit * number}": (unit, number) for unit, number in pairs}
        times.update({name: try_out(name) for name in names if name not in times})
        return names[min(names, key=lambda name: times[name])]

    unit, _ = best_of([(unit, FIRST) for unit in UNITS])
    best_of([(unit, number) for number in NUMBERS])
    return min(times, key=lambda name: times[name])


def of_device(row: JobRow, compute: float, size: int, rate: float, cell: DeviceCell) -> JobRow:
    """A job's row with what is told of these jobs alone. ``compute``: seconds of an iteration; ``size``: bytes of all gradients, 0 if no
    job has told them; ``rate``: a worker's bytes/s."""
    return row._replace(
        compute_ms=round(compute * 1e3, 1),
        images=cell.batch * cell.cluster.workers,
        cores_percent=cores_percent(row, cell.cluster.workers),
        **({"rho": round(size / rate / compute, 3), "megabytes": round(size / 1e6, 2)} if size else {}),
    )


def cores_percent(row: JobRow, workers: int) -> float:
    """What a job's workers and servers took of the machine's cores."""
    return round(((row.cpu_percent or 0) * workers + (row.server_cpu_percent or 0)) / len(os.sched_getaffinity(0)), 1)


def script(cell: DeviceCell, method: Optional[Method], options: argparse.Namespace) -> List[str]:
    """The command of a worker. It says when a batch has ended from the second on, and another one ends the last that is measured. Without
    a method the device updates the weights."""
    workers = 1 if method is None else cell.cluster.workers
    on_servers = method is not None and not method.name.startswith("p3")
    settings = {
        "--network": cell.cluster.profile,
        "--gpus": 0,
        "--batch-size": cell.batch,
        "--num-examples": cell.batch * workers * (options.warmup + options.iterations + 2),
        "--kv-store": "device" if method is None else "dist_sync",
        "--update-on": "servers" if on_servers else "workers",
    }
    if cell.script != "transformer":
        settings.update(
            {"--image-shape": f"3,{cell.side},{cell.side}", "--benchmark": 1, "--num-epochs": 1, "--top-k": 0, "--disp-batches": 1}
        )
    if method is not None and not method.wrap:
        settings["--policy"] = "off"
    return [sys.executable, *COMMANDS[cell.script], *(str(word) for pair in settings.items() for word in pair)]


if __name__ == "__main__":
    sys.exit(main())
