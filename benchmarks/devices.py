"""Compare methods in training on emulated GPUs: real scripts, networks of full size, over shaped links; needs root and 'make cuda'.

    .venv-cuda/bin/python -m benchmarks.devices --cell resnet50_v1,batch=64,device=v100,rate=3Gbit --tune credit

Workers run a script with MXNet's CUDA build on the emulated CUDA runtime: engine, streams, copies and pinned memory are MXNet's own, and a
device takes the time of its work. Arithmetic is missing, so nothing is learned. The scripts are train_imagenet.py of
examples/mxnet-image-classification, with ``script=gluon`` train_gluon.py, with ``script=transformer`` benchmarks/jobs/transformer.py. Of
those with Trainer the keys are as it numbers what ``collect_params()`` gives: by name. A cell is a network with batch, device, rate,
workers, servers and script; ``side`` is the height and width of its images. Servers update the weights, by SGD with momentum. P3 cannot
do that: with p3 the workers update them. The methods run as with benchmarks.training.

``--tune credit`` first looks for its best unit and credit, with a short job for each, and then runs it with them as a further method.

The table says what share of the machine's cores the processes of a job took. Over 80% the processor decides with the network.
The exit code is 1 if a job failed; 3 without the privileges that namespaces need.
"""

import argparse
import sys
from functools import partial
from typing import Dict, List, NamedTuple, Optional, Sequence

from prophet_mx.cli.arguments import checked
from prophet_mx.errors import ConfigError, ProphetError, not_allowed
from prophet_mx.planning.bound import worker_rate

from .comparison.cells import Cell
from .comparison.command import CellOfJobs, Kept, Session, add_comparison_options, compare, protocol
from .comparison.metadata import ROOT, describe
from .comparison.methods import Method, parse
from .comparison.rows import JobRow, MeasuredJob
from .comparison.trainings import KIND_OF_DEVICES as KIND
from .comparison.tuning import short, tuned
from .testbed import Testbed, measure
from .testbed.cuda import environment
from .testbed.exits import exit_code
from .training import SCRIPTS, STANDARD, compute_once, methods_of_scripts, run_script

DEVICES = ("m60", "v100", "a100")
COMMANDS = {
    "module": [str(SCRIPTS / "train_imagenet.py")],
    "gluon": [str(SCRIPTS / "train_gluon.py"), "--keys", "names"],
    "transformer": [str(ROOT / "benchmarks" / "jobs" / "transformer.py")],
}
OWN = ("batch", "device", "script", "side")  # settings of a cell that are no cluster's
UNITS = (250_000, 500_000, 1_000_000, 2_000_000)  # that --tune tries, bytes


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
        env = environment()
    except ProphetError as error:
        return exit_code(error)
    methods = [parse(name) for name in options.methods]
    found = [CellOfJobs(str(cell), KIND, partial(run_cell, cell, methods, env, options)) for cell in cells]
    asked = protocol(options, [cell.cell for cell in found], options.methods)
    return compare(found, options, "devices", {**describe("devices", arguments, "MXNet", "mxnet-cu112"), **asked})


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.devices", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cell", action="append", required=True, metavar="NETWORK,KEY=VALUE,...", help="as above; may be repeated")
    parser.add_argument(
        "--methods", type=checked(methods_of_scripts), default=list(STANDARD), help=f"as for benchmarks.run (default {','.join(STANDARD)})"
    )
    parser.add_argument("--tune", choices=("credit",), help="also run it with the unit and credit that are found to be its best")
    add_comparison_options(parser)
    return parser


def run_cell(cell: DeviceCell, methods: Sequence[Method], env: Dict[str, str], options: argparse.Namespace, kept: Kept) -> List[JobRow]:
    """Run a round of ``methods`` in one cell and return its rows. Raises NeedsRoot and TestbedError."""
    known: Dict[str, Method] = {method.name: method for method in methods}
    options = argparse.Namespace(**{**vars(options), "batch_size": cell.batch})
    cluster = cell.cluster
    env = {**env, "EMULATED_CUDA_DEVICE": cell.device, "EMULATED_CUDA_COUNT": "1"}
    with Testbed(cluster.workers, cluster.servers, cluster.rate) as bed:
        session = Session(str(cell), KIND, cluster.rate, lambda: measure(bed), options, kept)

        def train(method: Optional[Method], protocol: argparse.Namespace) -> MeasuredJob:
            return run_script(bed, script(cell, method, protocol), method, protocol, env, with_weights=False)

        compute = compute_once(session, lambda name: train(None, options), options, kept)
        if options.tune:
            if "best" not in kept.found:
                kept.found["best"] = [tuned(options.tune, UNITS, lambda method: train(method, short(options)))]
            known.update({name: parse(name) for name in kept.found["best"]})
        attempts = session.attempts(list(known), lambda name: train(known[name], options))
        rows = session.rows(attempts, None)
    rate = worker_rate(session.goodput.link, cluster.workers, cluster.servers)
    size = max((attempt.job.workers[0]["bytes"] for attempt in attempts if attempt.job is not None), default=0)
    return [row if attempt.job is None else of_device(row, compute, size, rate, cell) for row, attempt in zip(rows, attempts)]


def of_device(row: JobRow, compute: float, size: int, rate: float, cell: DeviceCell) -> JobRow:
    """A job's row with what is told of these jobs alone. ``compute``: seconds of an iteration; ``size``: bytes of all gradients, 0 if no
    job has told them; ``rate``: a worker's bytes/s."""
    return row._replace(
        compute_ms=round(compute * 1e3, 1),
        images=cell.batch * cell.cluster.workers,
        **({"rho": round(size / rate / compute, 3), "megabytes": round(size / 1e6, 2)} if size else {}),
    )


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
