"""The pictures of README.md and docs/, as PNG and SVG, from the simulator and from the published results.

    python -m benchmarks.plots
    python -m benchmarks.plots --job resnet50_v1,compute=0.5,scale=0.3 --cell resnet50_v1,rho=1,compute=0.15 --out docs/images

Needs matplotlib (extra ``plot``).

iteration  one iteration with plain dist_sync and with prophet, on one time axis: what a worker computes, when it stalls, and what its link
           carries. Simulated; the text has the measured times of the same cell where they are published.
gantt      the same iteration, with a row per gradient: its wait in the worker, its time to the server (queues behind other units
           included) and the time until the answer, coloured by the step in which it became ready.
bandwidth  speed-up over plain dist_sync against the rate of the links. Lines are simulated, points are measured: all published jobs of the
           same model and size at any rate.

The simulator's costs of messages are those that benchmarks/results/simulator was fitted with. While that is not published messages cost
nothing, and the pictures say so.
"""

import argparse
import sys
from pathlib import Path
from typing import Any, Optional, Sequence

import matplotlib

from prophet_mx.errors import ProphetError

from .comparison.cells import Cell
from .comparison.results import RESULTS
from .pictures.speedups import CELL, JOB, message_costs
from .validate_simulator import COSTS_FILE

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from .pictures.bandwidth import draw_bandwidth
from .pictures.gantt import draw_gantt
from .pictures.iteration import draw_iteration
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
    parser.add_argument("--job", default=JOB, metavar="CELL", help="the job of the bandwidth picture")
    parser.add_argument("--cell", default=CELL, help="the job of the pictures of one iteration")
    parser.add_argument("--costs", type=Path, default=COSTS_FILE, help="from validate_simulator --fit (default %(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="measured results (default %(default)s)")
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder (default %(default)s)")
    options = parser.parse_args(arguments)
    settle()
    try:
        costs, cell = message_costs(options.costs), Cell.parse(options.cell)
        save(draw_iteration(cell, costs, options.results), options.out, "iteration")
        save(draw_gantt(cell, costs), options.out, "gantt")
        save(draw_bandwidth(Cell.parse(options.job), costs, options.results), options.out, "bandwidth")
    except (ProphetError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
