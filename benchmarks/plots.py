"""The pictures of README.md and docs/, as PNG and SVG, from the simulator and from the published results.

    python -m benchmarks.plots
    python -m benchmarks.plots --cell resnet50_v1,rho=1,scale=1,rate=4Gbit --out docs/images

Needs matplotlib (extra ``plot``).

models     measured: ms per iteration of each model with each method, of the question models
rates      simulated: how many times as fast as plain dist_sync prophet is, by model and rate of the links
iteration  simulated: one iteration with plain dist_sync and with prophet, on one time axis: what a worker computes, when it stalls, and
           what its link carries. Its text has the measured times of a script on emulated GPUs that is like it, where they are published.
machines   the workers and servers of a job, and what travels between them

The costs of messages in the picture of an iteration are those that benchmarks/results/simulator was fitted with. While that is not
published messages cost nothing, and the picture says so. In the picture of rates they are those that ``prophet-mx predict`` assumes.
"""

import argparse
import sys
from pathlib import Path
from typing import Any, Optional, Sequence

import matplotlib

from prophet_mx.errors import ProphetError

from .comparison.cells import Cell
from .comparison.results import RESULTS
from .pictures.speedups import CELL, message_costs
from .validate_simulator import COSTS_FILE

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from .pictures.iteration import draw_iteration
from .pictures.machines import draw_machines
from .pictures.models import draw_models
from .pictures.rates import draw_rates
from .pictures.style import settle

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"


def save(figure: Any, folder: Path, name: str) -> None:
    """Write a figure as PNG and SVG and say so."""
    folder.mkdir(parents=True, exist_ok=True)
    for suffix in ("png", "svg"):
        path = folder / f"{name}.{suffix}"
        # Without the date and with fixed ids the same data give the same file.
        figure.savefig(str(path), dpi=110, metadata={"Date": None} if suffix == "svg" else None)
        print(f"written: {path}")
    plt.close(figure)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; see the top of this file. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cell", default=CELL, help="the job of the picture of one iteration (default %(default)s)")
    parser.add_argument("--costs", type=Path, default=COSTS_FILE, help="from validate_simulator --fit (default %(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="measured results (default %(default)s)")
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder (default %(default)s)")
    options = parser.parse_args(arguments)
    settle()
    try:
        costs, cell = message_costs(options.costs), Cell.parse(options.cell)
        save(draw_iteration(cell, costs, options.results), options.out, "iteration")
        save(draw_models(options.results), options.out, "models")
        save(draw_rates(), options.out, "rates")
        save(draw_machines(), options.out, "machines")
    except (ProphetError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
