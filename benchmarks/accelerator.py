"""The emulated accelerator alone: nominal against measured time, and what it costs in CPU.

    python -m benchmarks.accelerator resnet50_v1 --compute 1 --iterations 10

Runs a profile's forward and backward operations without any communication. Exit code 1 if the time is off by more than 1% or
the process took more than 3% of a core.
"""

import argparse
import sys
import time
from typing import Optional, Sequence

from prophet_mx.cli.arguments import compute_seconds, count
from prophet_mx.errors import ProphetError
from prophet_mx.mxnet.api import bind

from .comparison.cells import Cell
from .testbed.accelerator import Accelerator
from .testbed.emulated import Model

TIME_TOLERANCE, CPU_LIMIT = 0.01, 0.03


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; see the top of this file. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accelerator", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("profile", nargs="?", default="resnet50_v1")
    parser.add_argument("--compute", type=compute_seconds, default=1.0, help="seconds per iteration (default 1)")
    parser.add_argument("--iterations", type=count, default=10)
    options = parser.parse_args(arguments)
    try:
        profile = Cell(options.profile, compute=options.compute).load(125e6).profile
    except ProphetError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    bind()
    with Accelerator() as accelerator:
        # A world of no workers: the sum that forward checks for is then 0, which is what nobody ever writes.
        model = Model(profile, accelerator, rank=0, workers=0)
        begin, cpu = time.monotonic(), time.process_time()
        for iteration in range(options.iterations):
            model.forward(iteration)
            model.backward(iteration)
            model.output.wait_to_read()
        model.gradients[0].wait_to_read()  # the last backward operation's
        took, cpu = time.monotonic() - begin, time.process_time() - cpu
        wrong = accelerator.wrong
    nominal = options.iterations * profile.compute_seconds
    print(
        f"{profile.name}: {len(model.forwards)} forward and {len(model.steps)} backward operations per iteration; "
        f"nominal {nominal:.4f} s, measured {took:.4f} s ({took / nominal - 1:+.3%}); CPU {cpu / took:.2%} of a core"
    )
    return int(abs(took / nominal - 1) > TIME_TOLERANCE or cpu / took > CPU_LIMIT or wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
