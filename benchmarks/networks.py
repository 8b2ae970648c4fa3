"""Time per iteration of networks on the emulated GPU, without communication; needs MXNet's CUDA build ('make cuda').

    .venv-cuda/bin/python -m benchmarks.networks --device v100

Each network of MXNet's model zoo trains in a process of its own, by gluon's Trainer with momentum, on images that lie on the device. The
time is the shortest of the measured iterations, because a busy machine makes iterations longer, and none shorter. Published speeds are
those of MXNet's page "Some Tips for Improving MXNet Performance" (MXNet 1.2, single precision), where it has the network with this batch.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from prophet_mx.cli.arguments import count
from prophet_mx.errors import ProphetError

from .comparison.metadata import describe
from .comparison.results import add_output_options, write_everywhere
from .testbed.cuda import environment
from .testbed.exits import exit_code
from .testbed.job import plain_environment

# Network and batch.
NETWORKS: Tuple[Tuple[str, int], ...] = (
    ("alexnet", 512),
    ("vgg16", 32),
    ("resnet18_v1", 64),
    ("resnet50_v1", 64),
    ("resnet152_v1", 32),
    ("inceptionv3", 64),
    ("densenet121", 32),
    ("squeezenet1.0", 64),
    ("mobilenet1.0", 64),
    ("mobilenetv2_1.0", 64),
)
# Images/s by device, network and batch.
PUBLISHED = {
    "v100": {("alexnet", 512): 2585.61, ("resnet50_v1", 64): 343.19, ("inceptionv3", 64): 247.43},
    "m60": {("alexnet", 512): 576.54, ("resnet50_v1", 32): 68.34, ("inceptionv3", 32): 50.05},
}
_ONE = "PROPHET_BENCH_NETWORK"  # tells a child what it measures


class Row(NamedTuple):
    """What one network takes. ``published``: images/s; None: not known."""

    network: str
    batch: int
    ms: float
    images_per_second: float
    published: Optional[float]
    processor_ms: float

    def line(self) -> str:
        told = f"{self.published:.0f} ({self.images_per_second / self.published - 1:+.0%})" if self.published else ""
        return f"| {self.network} | {self.batch} | {self.ms:.1f} | {self.images_per_second:.0f} | {told} | {self.processor_ms:.1f} |"


HEAD = (
    "| network | batch | ms per iteration | images/s | published (this against it) | processor, ms per iteration |\n"
    "|---|---:|---:|---:|---:|---:|"
)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; see the top of this file. Returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.networks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("m60", "v100", "a100"), default="v100")
    parser.add_argument("--iterations", type=count, default=30, help="measured, after three (default 30)")
    parser.add_argument("--network", action="append", metavar="NAME:BATCH", help="instead of the ten; may be repeated")
    add_output_options(parser)
    options = parser.parse_args(arguments)
    chosen = [(name, int(batch)) for name, _, batch in (text.partition(":") for text in options.network or ())] or list(NETWORKS)
    rows: List[Row] = []
    try:
        env = {**plain_environment(), **environment(device=options.device, count=1)}
        for name, batch in chosen:
            found = _child({"network": name, "batch": batch, "iterations": options.iterations}, env)
            published = PUBLISHED.get(options.device, {}).get((name, batch))
            ms, processor = round(found["seconds"] * 1e3, 1), round(found["processor"] * 1e3, 1)
            rows.append(Row(name, batch, ms, round(batch / found["seconds"], 1), published, processor))
            print(rows[-1].line(), flush=True)
    except ProphetError as error:
        return exit_code(error)
    table = "\n".join([HEAD, *(row.line() for row in rows)]) + "\n"
    write_everywhere(options, "networks", Row._fields, rows, table, describe("networks", arguments, "MXNet", "mxnet-cu112"))
    return 0


def _child(task: Dict[str, Any], env: Dict[str, str]) -> Dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.networks"]
    done = subprocess.run(command, env={**env, _ONE: json.dumps(task)}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ProphetError(f"{task['network']} ended with {done.returncode}\n{done.stderr[-4000:]}")
    found: Dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(network: str, batch: int, iterations: int) -> Dict[str, float]:
    """Train; the shortest iteration, and what an iteration took of the processor on average, in seconds."""
    import mxnet as mx
    from mxnet import autograd, gluon

    device, side = mx.gpu(0), 299 if network.startswith("inception") else 224
    net = gluon.model_zoo.vision.get_model(network, classes=1000)
    net.initialize(mx.init.Xavier(), ctx=device)
    net.hybridize(static_alloc=True, static_shape=True)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, kvstore=None)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    data, label = mx.nd.zeros((batch, 3, side, side), ctx=device), mx.nd.zeros((batch,), ctx=device)
    times: List[float] = []
    used = 0.0
    for number in range(3 + iterations):
        begin, before = time.monotonic(), time.process_time()
        with autograd.record():
            value = loss(net(data), label)
        value.backward()
        trainer.step(batch)
        mx.nd.waitall()
        if number >= 3:
            times.append(time.monotonic() - begin)
            used += time.process_time() - before
    return {"seconds": min(times), "processor": used / iterations}


if __name__ == "__main__":
    if _ONE in os.environ:
        print(json.dumps(measure(**json.loads(os.environ[_ONE]))))
        sys.exit(0)
    sys.exit(main())
