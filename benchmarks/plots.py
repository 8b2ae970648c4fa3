"""Pictures, as PNG and SVG: time per iteration against bandwidth, and one iteration's Gantt chart.

    python -m benchmarks.plots
    python -m benchmarks.plots --job resnet50_v1,compute=0.5,scale=0.3 --cell resnet50_v1,rho=1,compute=0.8 --out docs/images

Needs matplotlib (extra ``plot``).

bandwidth  lines are simulated with the costs that benchmarks/results/simulator was fitted with, points are measured on the testbed:
           all published medians of the same job at any rate. The bound is for the same goodput.
gantt      a simulated iteration in steady state, of stock MXNet and of prophet: computing, and for every unit its wait in the
           worker, its time to the server (queues behind other units included) and the time until the answer, coloured by
           the step in which its gradient became ready.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import matplotlib

from prophet_mx.errors import ProphetError
from prophet_mx.profiling.gradient_profile import GradientProfile
from prophet_mx.simulation.simulator import Cluster, Result, default_units, simulate

from .comparison.cells import Cell
from .comparison.results import RESULTS, Files
from .questions import QUESTIONS
from .validate_simulator import COSTS_FILE, predict, read

matplotlib.use("Agg")
import matplotlib.pyplot as plt

GOODPUT_SHARE = 0.945  # of a link's rate that TCP delivers, where nothing was measured
RATES_GBIT = (0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0)
STYLES = {"pushpull": ("stock MXNet", "tab:red"), "priority": ("priority", "tab:orange"), "prophet": ("prophet", "tab:blue")}
IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"


def measured_points(job: Cell, results: Path) -> Dict[str, List[Tuple[float, float]]]:
    """method -> (rate in Gbit/s, ms) of all measured rows of ``job``, whatever their rate."""
    points: Dict[str, List[Tuple[float, float]]] = {}
    files = [Files.published(question.name, results).data for question in QUESTIONS.values() if question.module == "run"]
    for row in read([file for file in files if file.exists()]):
        if replace(row.cell, rate=job.rate) == job:
            points.setdefault(row.method, []).append((row.cell.rate * 8 / 1e9, row.seconds * 1e3))
    return points


def draw_bandwidth(job: Cell, costs: Dict[str, float], results: Path) -> Any:
    """The figure of time per iteration against bandwidth."""
    figure, axes = plt.subplots(figsize=(7, 4.2))
    cells = [replace(job, rate=rate * 1e9 / 8) for rate in RATES_GBIT]
    points = measured_points(job, results)
    for method, (label, colour) in STYLES.items():
        times = [predict(cell, method, cell.rate * GOODPUT_SHARE, costs) * 1e3 for cell in cells]
        axes.plot(RATES_GBIT, times, color=colour, label=f"{label}, simulated")
        if points.get(method):
            axes.plot(*zip(*points[method]), "o", color=colour, label=f"{label}, measured")
    bounds = [cell.load(cell.rate * GOODPUT_SHARE).bound * 1e3 for cell in cells]
    axes.plot(RATES_GBIT, bounds, "k--", linewidth=1, label="lower bound")
    axes.set(
        xscale="log",
        xlabel="link rate, Gbit/s",
        ylabel="time per iteration, ms",
        ylim=(0, None),
        title=f"{job.profile}: {job.workers} workers, {job.servers} server(s), "
        f"{cells[0].load(cells[0].rate).profile.total_bytes / 1e6:.0f} MB, compute "
        f"{cells[0].load(cells[0].rate).profile.compute_seconds * 1e3:.0f} ms",
    )
    ticks = [0.2, 0.3, 0.5, 1.0, 2.0, 4.0]
    axes.set_xticks(ticks)
    axes.set_xticklabels([f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    return figure


def draw_gantt(cell: Cell, costs: Dict[str, float], policies: Sequence[str] = ("plain", "prophet")) -> Any:
    """The figure of one iteration: a panel per policy, all with the same time axis."""
    goodput = cell.rate * GOODPUT_SHARE
    load = cell.load(goodput)
    cluster = Cluster(bandwidth=goodput, workers=cell.workers, servers=cell.servers, **costs)
    figure, panels = plt.subplots(len(policies), 1, figsize=(9, 3.6 * len(policies)), sharex=True)
    for axes, policy in zip(panels, policies):
        units = default_units(load.profile, cluster, policy)
        _panel(axes, load.profile, simulate(load.profile, cluster, policy, units), load.bound)
    panels[-1].set_xlabel("time from the start of backward, s")
    figure.suptitle(f"{cell}: one iteration, simulated", fontsize=10)
    figure.tight_layout()
    return figure


def _panel(axes: Any, profile: GradientProfile, result: Result, bound: float) -> None:
    """Computing on top; below it a line per unit in the order of release: wait grey, to the server in its step's colour, the
    rest of the way to the answer pale. Units released together, a block, share a mark at the left of their lines."""
    timeline = result.workers[0].timeline
    ready = profile.backward_ready_times()
    steps = sorted(profile.steps, key=lambda step: ready[step[0]])
    colours = [matplotlib.colormaps["turbo"](0.08 + 0.84 * place / max(1, len(steps) - 1)) for place in range(len(steps))]
    colour_of = {index: colours[place] for place, step in enumerate(steps) for index in step}
    order = sorted(range(len(result.units)), key=lambda unit: (timeline.units[unit].released, timeline.units[unit].ready))
    height = len(order) / 14  # of the lane of computing, in lines
    start = 0.0
    for place, step in enumerate(steps):
        axes.barh(-height, ready[step[0]] - start, left=start, height=height, color=colours[place], edgecolor="white", linewidth=0.5)
        axes.axvline(ready[step[0]], color="0.85", linewidth=0.6, zorder=0)
        start = ready[step[0]]
    for index, (begin, end) in enumerate(timeline.forward):
        axes.barh(-height, end - begin, left=begin, height=height, color=colour_of[index], alpha=0.55)
    block, before = 0, None
    for line, unit in enumerate(order):
        times = timeline.units[unit]
        colour = colour_of[result.units[unit].gradient]
        axes.barh(line, times.released - times.ready, left=times.ready, height=1, color="0.88")
        axes.barh(line, times.drained - times.released, left=times.released, height=1, color=colour)
        axes.barh(line, times.answered - times.drained, left=times.drained, height=1, color=colour, alpha=0.3)
        block += before is not None and times.released > before
        before = times.released
        axes.barh(line, 0.006 * bound, left=times.released - 0.006 * bound, height=1, color="black" if block % 2 else "0.6")
    axes.axvline(bound, color="black", linestyle="--", linewidth=1)
    axes.set(
        ylim=(len(order), -2 * height),
        yticks=[-height],
        yticklabels=["compute"],
        ylabel=f"{len(order)} units, as released",
        title=f"{result.policy}: {result.seconds * 1e3:.0f} ms, bound (dashed) {bound * 1e3:.0f} ms; {block + 1} blocks",
    )
    axes.title.set_fontsize(9)


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
    parser.add_argument("--job", default="resnet50_v1,compute=0.5,scale=0.3", metavar="CELL", help="of the bandwidth picture")
    parser.add_argument("--cell", default="resnet50_v1,rho=1,compute=0.8", help="of the Gantt chart")
    parser.add_argument("--costs", type=Path, default=COSTS_FILE, help="from validate_simulator --fit (default %(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="measured results (default %(default)s)")
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder (default %(default)s)")
    options = parser.parse_args(arguments)
    plt.rcParams["svg.hashsalt"] = "prophet_mx"
    try:
        costs = json.loads(options.costs.read_text())["costs"]
        save(draw_bandwidth(Cell.parse(options.job), costs, options.results), options.out, "bandwidth")
        save(draw_gantt(Cell.parse(options.cell), costs), options.out, "gantt")
    except (ProphetError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
