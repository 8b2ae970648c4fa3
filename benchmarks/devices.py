"""Compare methods in training on emulated GPUs: real scripts, networks of full size, over shaped links; needs root and 'make cuda'.

    .venv-cuda/bin/python -m benchmarks.devices --cell resnet50_v1,batch=64,device=v100,rate=3Gbit

Workers run examples/mxnet-image-classification/train_imagenet.py, or train_gluon.py with ``script=gluon``, with MXNet's CUDA build on the
emulated CUDA runtime: engine, streams, copies and pinned memory are MXNet's own, and a device takes the time of its work. Arithmetic is
missing, so nothing is learned. A cell is a network of MXNet's model zoo with batch, device, rate, workers, servers and script. P3 cannot
update weights on the servers: with p3 they are updated on the workers. The methods run as with benchmarks.training.

The table says where the processes of a job take over 80% of the machine's cores: there the processor decides with the network.
The exit code is 1 if a job failed; 3 without the privileges that namespaces need.
"""

import argparse
import os
import sys
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence

from prophet_mx.cli.arguments import checked
from prophet_mx.errors import ConfigError, ProphetError
from prophet_mx.planning.bound import worker_rate
from prophet_mx.profiling.gradient_profile import GradientProfile

from .comparison.cells import PROFILES, Cell
from .comparison.command import Session, add_comparison_options, compare, protocol
from .comparison.metadata import describe
from .comparison.methods import Method, parse
from .comparison.rows import JobRow, MeasuredJob
from .comparison.trainings import KIND_OF_DEVICES as KIND
from .testbed import Testbed, measure
from .testbed.cuda import environment
from .testbed.exits import exit_code
from .training import ALONE, SCRIPTS, STANDARD, compute_seconds, methods_of_scripts, run_script

DEVICES = ("m60", "v100", "a100")
FILES = {"module": "train_imagenet.py", "gluon": "train_gluon.py"}


class DeviceCell(NamedTuple):
    """A network, its cluster, and how it is trained."""

    cluster: Cell
    batch: int = 32
    device: str = "v100"
    script: str = "module"

    @classmethod
    def parse(cls, text: str) -> "DeviceCell":
        """The cell of a text as above. Raises ConfigError."""
        own: Dict[str, str] = {}
        others = []
        for part in text.split(","):
            name, _, value = part.strip().partition("=")
            if name in ("batch", "device", "script"):
                own[name] = value
            else:
                others.append(part)
        for name, allowed in (("device", DEVICES), ("script", tuple(FILES))):
            if own.get(name, allowed[0]) not in allowed:
                raise ConfigError(f"cell {text!r}: {name}={own[name]} is not allowed; allowed: {', '.join(allowed)}")
        if not own.get("batch", "1").isdecimal() or int(own.get("batch", "1")) < 1:
            raise ConfigError(f"cell {text!r}: batch={own['batch']} is not allowed; allowed: a whole number from 1")
        cluster = Cell.parse(",".join(others))
        if cluster != Cell(cluster.profile, cluster.workers, cluster.servers, cluster.rate):
            raise ConfigError(
                f"cell {text!r}: allowed are batch, device, rate, workers, servers and script; compute and sizes are the network's"
            )
        return cls(cluster, int(own.get("batch", "32")), own.get("device", "v100"), own.get("script", "module"))

    def __str__(self) -> str:
        network, rest = str(self.cluster).split(",", 1)
        return f"{network},batch={self.batch},device={self.device},script={self.script},{rest}"


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; see the top of this file. Returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(arguments)
    try:
        cells = [DeviceCell.parse(text) for text in options.cell]
        env = environment()
    except ProphetError as error:
        return exit_code(error)

    def found() -> Iterator[List[JobRow]]:
        for cell in cells:
            yield run_cell(cell, [parse(name) for name in options.methods], env, options)

    asked = protocol(options, [str(cell) for cell in cells], options.methods, {})
    return compare(found(), options, "devices", {**describe("devices", arguments, "MXNet", "mxnet-cu112"), **asked})


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.devices", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cell", action="append", required=True, metavar="NETWORK,KEY=VALUE,...", help="as above; may be repeated")
    parser.add_argument(
        "--methods", type=checked(methods_of_scripts), default=list(STANDARD), help=f"as for benchmarks.run (default {','.join(STANDARD)})"
    )
    add_comparison_options(parser)
    return parser


def run_cell(cell: DeviceCell, methods: Sequence[Method], env: Dict[str, str], options: argparse.Namespace) -> List[JobRow]:
    """Run the jobs of ``methods`` in one cell and return a row for each. Raises NeedsRoot and TestbedError."""
    known: Dict[str, Optional[Method]] = {method.name: method for method in methods}
    options = argparse.Namespace(**{**vars(options), "batch_size": cell.batch})
    cluster = cell.cluster
    env = {**env, "EMULATED_CUDA_DEVICE": cell.device, "EMULATED_CUDA_COUNT": "1"}
    with Testbed(cluster.workers, cluster.servers, cluster.rate) as bed:

        def run(name: str) -> MeasuredJob:
            method = known.get(name)
            return run_script(bed, script(cell, method, options), method, options, env, with_weights=False)

        session = Session(str(cell), KIND, cluster.rate, lambda: measure(bed), options)
        compute = compute_seconds(session.attempts([ALONE], run, repeats=1), options)
        attempts = session.attempts(list(known), run)
        rows = session.rows(attempts, None)
    size = gradient_bytes(cluster.profile)
    rate = worker_rate(session.goodput.link, cluster.workers, cluster.servers)
    for number, (row, attempt) in enumerate(zip(rows, attempts)):
        if attempt.job is not None:
            more = {"rho": round(size / rate / compute, 3), "megabytes": round(size / 1e6, 2)} if size else {}
            rows[number] = row._replace(
                compute_ms=round(compute * 1e3, 1),
                images=cell.batch * cluster.workers,
                cores_percent=cores_percent(row, cluster.workers),
                **more,
            )
    return rows


def gradient_bytes(network: str) -> int:
    """Of all gradients, if there is a profile of the network, else 0."""
    path = PROFILES / f"{network}.json"
    return GradientProfile.load(str(path)).total_bytes if path.exists() else 0


def cores_percent(row: JobRow, workers: int) -> float:
    """What a job's workers and servers took of the machine's cores."""
    return round(((row.cpu_percent or 0) * workers + (row.server_cpu_percent or 0)) / len(os.sched_getaffinity(0)), 1)


def script(cell: DeviceCell, method: Optional[Method], options: argparse.Namespace) -> List[str]:
    """The command of a worker. It says when a batch has ended from the second on, and another one ends the last that is measured."""
    side = 299 if cell.cluster.profile.startswith("inception") else 224
    workers = 1 if method is None else cell.cluster.workers
    settings = {
        "--network": cell.cluster.profile,
        "--image-shape": f"3,{side},{side}",
        "--benchmark": 1,
        "--gpus": 0,
        "--batch-size": cell.batch,
        "--num-examples": cell.batch * workers * (options.warmup + options.iterations + 2),
        "--num-epochs": 1,
        "--top-k": 0,
        "--disp-batches": 1,
        "--kv-store": "local" if method is None else "dist_sync",
    }
    if method is not None:
        settings["--update-on"] = "workers" if method.name.startswith("p3") else "servers"
        settings.update({} if method.wrap else {"--policy": "off"})
    return [sys.executable, str(SCRIPTS / FILES[cell.script]), *(str(word) for pair in settings.items() for word in pair)]


if __name__ == "__main__":
    sys.exit(main())
