"""The Gantt chart of one iteration: a row per gradient, the first layer on top, a panel per method, all with the same time axis."""

from typing import Any, Dict

import matplotlib.pyplot as plt
from matplotlib.patches import Patch

from prophet_mx.profiling.gradient_profile import GradientProfile
from prophet_mx.quantities import format_rate
from prophet_mx.simulation.cluster import default_units
from prophet_mx.simulation.simulator import Cluster, Result, simulate

from ..comparison.cells import Cell
from .spans import iteration
from .speedups import GOODPUT_SHARE, Costs, conditions
from .style import ALARM, GRID, MUTED, NAMES, POLICIES, STALL, TEXT, layers

WAIT = "#cccccc"


def draw_gantt(cell: Cell, costs: Costs) -> Any:
    """The figure."""
    goodput = cell.rate * GOODPUT_SHARE
    load = cell.load(goodput)
    cluster = Cluster(bandwidth=goodput, workers=cell.workers, servers=cell.servers, **costs.values)
    figure, panels = plt.subplots(len(POLICIES), 1, figsize=(9.6, 8.6), sharex=True)
    results = [simulate(load.profile, cluster, policy, default_units(load.profile, cluster, policy)) for policy in POLICIES.values()]
    for axes, result, name in zip(panels, results, NAMES.values()):
        _panel(axes, load.profile, result)
        axes.set_title(f"{name}: {result.seconds * 1e3:.0f} ms per iteration, {len(result.units)} messages")
    panels[-1].set_xlabel("ms from the start of backward")
    panels[-1].set_xlim(0, 1e3 * max(result.seconds for result in results) * 1.02)
    figure.text(0.012, 0.036, f"{conditions(cell, load.profile)}, {format_rate(cell.rate)}.", fontsize=9, color=MUTED)
    figure.text(0.012, 0.014, f"Simulated {costs.words}.", fontsize=9, color=MUTED)
    figure.tight_layout(rect=(0, 0.09, 1, 1), h_pad=1.6)
    _legend(figure, len(load.profile.steps))
    return figure


def _panel(axes: Any, profile: GradientProfile, result: Result) -> None:
    """Computing on top; below it a row per gradient. Of the units of a gradient, what is being sent is drawn last."""
    one, rows = iteration(profile, result), len(profile.gradients)
    colour_of = _colours(profile)
    lane = rows / 12  # height of the lane of computing, in rows
    for span in (*one.backward, *one.forward):
        axes.barh(-lane, _ms(span.end - span.begin), lane, _ms(span.begin), color=colour_of[span.gradient])
    for begin, end in one.stalls:
        axes.barh(-lane, _ms(end - begin), lane, _ms(begin), color="white", edgecolor=STALL, hatch="////", linewidth=0.8)
    units = [(unit.gradient, times) for unit, times in zip(result.units, result.workers[0].last.units)]
    for gradient, times in units:
        axes.barh(gradient, _ms(times.released - times.ready), 1, _ms(times.ready), color=WAIT)
    for gradient, times in units:
        axes.barh(gradient, _ms(times.answered - times.drained), 1, _ms(times.drained), color=colour_of[gradient], alpha=0.4, linewidth=0)
    for gradient, times in units:
        axes.barh(gradient, _ms(times.drained - times.released), 1, _ms(times.released), color=colour_of[gradient])
    _start_of_forward(axes, one.forward[0].begin, lane, rows)
    axes.axvline(_ms(result.bound), color=TEXT, linestyle="--", linewidth=1)
    axes.set_ylim(rows, -2 * lane)
    axes.set_yticks([-lane, 0, rows - 1], ["computes", "first layer", "last layer"])
    axes.grid(axis="x", color=GRID)
    axes.set_axisbelow(True)


def _start_of_forward(axes: Any, at: float, lane: float, rows: int) -> None:
    axes.annotate(
        "forward may start:\nthe first layer is back",
        (_ms(at), -0.5 * lane),
        (_ms(at) + 2, rows * 0.3),
        color=ALARM,
        va="center",
        arrowprops={"arrowstyle": "-|>", "color": ALARM, "linewidth": 1.6},
    )


def _legend(figure: Any, steps: int) -> None:
    colour = layers()(0.55)
    entries = [
        Patch(color=WAIT, label="waits to be sent"),
        Patch(color=colour, label="sent, with queues in the network"),
        Patch(color=colour, alpha=0.4, label="until it is answered"),
        Patch(facecolor="white", edgecolor=STALL, hatch="////", label="stalled"),
        plt.Line2D([], [], color=TEXT, linestyle="--", linewidth=1, label="lower bound"),
    ]
    figure.legend(handles=entries, loc="lower left", bbox_to_anchor=(0.002, 0.052), ncol=5, frameon=False, fontsize=9.5, handlelength=1.6)
    axes = figure.add_axes((0.8, 0.03, 0.12, 0.014))
    axes.imshow([list(range(steps))], aspect="auto", cmap=layers())
    axes.set_axis_off()
    axes.text(-1, 0, "step 1", ha="right", va="center", fontsize=9)
    axes.text(steps, 0, f"{steps}", ha="left", va="center", fontsize=9)


def _colours(profile: GradientProfile) -> Dict[int, Any]:
    """By gradient: the colour of its step, in the order in which steps become ready."""
    ready = profile.backward_ready_times()
    steps = sorted(profile.steps, key=lambda step: ready[step[0]])
    return {gradient: layers()(place / max(1, len(steps) - 1)) for place, step in enumerate(steps) for gradient in step}


def _ms(seconds: float) -> float:
    return 1e3 * seconds
