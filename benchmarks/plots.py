"""The pictures of README.md and docs/, as PNG and SVG, from the simulator, the published results, and a recorded iteration.

    python -m benchmarks.plots
    python -m benchmarks.plots --recording /tmp/iteration.json --out /tmp

Needs matplotlib (extra ``plot``).

models     measured: ms per iteration of each model with each method, of the question models
rates      simulated: how many times as fast as plain dist_sync prophet is, by model and rate of the links, with the costs of messages that
           ``prophet-mx predict`` assumes
iteration  recorded: one iteration with plain dist_sync and with prophet, on one time axis: what a worker computes, when it stalls, and
           what its link carries. ``python -m benchmarks.pictures.record`` records it anew.
machines   the workers and servers of a job, and what travels between them
"""

import argparse
import sys
from pathlib import Path
from typing import Any, Optional, Sequence

import matplotlib

from prophet_mx.errors import ProphetError

from .comparison.results import RESULTS
from .pictures.recordings import RECORDED, load_recording

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
    parser.add_argument("--recording", type=Path, default=RECORDED, help="of one iteration (default %(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="measured results (default %(default)s)")
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder (default %(default)s)")
    options = parser.parse_args(arguments)
    settle()
    try:
        save(draw_iteration(load_recording(options.recording)), options.out, "iteration")
        save(draw_models(options.results), options.out, "models")
        save(draw_rates(), options.out, "rates")
        save(draw_machines(), options.out, "machines")
    except (ProphetError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
