"""The picture of speed-up over plain ``dist_sync`` against bandwidth: lines are simulated, points measured."""

from pathlib import Path
from typing import Any, List, Optional, Tuple

import matplotlib.pyplot as plt

from ..comparison.cells import Cell
from .speedups import BOUND, Costs, Point, conditions, measured, rate_of_rho, simulated, useful_range
from .style import ALARM, MUTED, STYLES, TEXT

RATES_GBIT = (0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0)
TICKS_GBIT = (0.2, 0.3, 0.5, 1.0, 2.0, 4.0)
USEFUL = 1.05  # times as fast as plain dist_sync: from there on the range is shaded
RHOS = {4.0: "4", 2.0: "2", 1.0: "1", 0.5: "1/2", 0.25: "1/4"}  # on the upper scale


def draw_bandwidth(job: Cell, costs: Costs, results: Path) -> Any:
    """The figure."""
    rates = [rate * 1e9 / 8 for rate in RATES_GBIT]
    lines = simulated(job, rates, [method for method in STYLES if method != BOUND], costs.values)
    points = measured(job, results)
    figure, axes = plt.subplots(figsize=(8.6, 5.4))
    axes.axhline(1.0, color=TEXT, linewidth=1.4)
    axes.annotate("plain dist_sync", (RATES_GBIT[0], 1.0), (0, -5), textcoords="offset points", va="top")
    for method, style in STYLES.items():
        axes.plot(
            *_axes(lines[method]),
            style.dash,
            color=style.colour,
            marker=style.marker,
            markersize=style.size,
            markerfacecolor=style.colour if style.filled else "white",
            label=style.label + ("" if method == BOUND else ", simulated"),
        )
        if points.get(method):
            axes.plot(
                *_axes(points[method]),
                style.marker,
                color=style.colour,
                markeredgecolor=TEXT,
                markersize=12,
                label=f"{style.label}, measured",
            )
    axes.set(
        xscale="log",
        xlim=(0.93 * RATES_GBIT[0], 1.07 * RATES_GBIT[-1]),
        xlabel="rate of the links, Gbit/s",
        ylabel="times as fast as plain dist_sync",
    )
    top = max(point.speedup for own in (*lines.values(), *points.values()) for point in own)
    axes.set_ylim(0.94, top + 0.15)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.1f}")
    axes.set_xticks(TICKS_GBIT, [f"{tick:g}" for tick in TICKS_GBIT])
    axes.minorticks_off()
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    _useful_range(axes, useful_range(lines["prophet"], USEFUL), top + 0.135)
    _scale_of_rho(axes, job)
    axes.legend(loc="upper center", bbox_to_anchor=(0.47, -0.13), ncol=3, frameon=False, fontsize=10)
    figure.text(0.012, 0.045, f"{conditions(job, job.load(job.rate).profile)}.", fontsize=9, color=MUTED)
    figure.text(0.012, 0.012, _origin(costs, bool(points)), fontsize=9, color=MUTED if points else ALARM)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    return figure


def _useful_range(axes: Any, found: Optional[Tuple[float, float]], y: float) -> None:
    if found:
        low, high = (rate * 8 / 1e9 for rate in found)
        axes.axvspan(low, high, color="#dfe8f5", zorder=0)
        axes.text((low * high) ** 0.5, y, f"prophet gains over {USEFUL - 1:.0%}, simulated", ha="center", va="top", fontweight="bold")


def _scale_of_rho(axes: Any, job: Cell) -> None:
    above = axes.twiny()
    above.set(xscale="log", xlim=axes.get_xlim(), xlabel="rho: communication time / compute time")
    above.set_xticks([_gbit(job, rho) for rho in RHOS], RHOS.values())
    above.minorticks_off()
    above.spines["top"].set_visible(True)


def _gbit(job: Cell, rho: float) -> float:
    return rate_of_rho(job, rho) * 8 / 1e9


def _axes(points: List[Point]) -> Any:
    return [point.rate * 8 / 1e9 for point in points], [point.speedup for point in points]


def _origin(costs: Costs, points: bool) -> str:
    return f"Lines: simulated, {costs.words}. " + ("Large points: measured." if points else "Nothing measured is published yet.")
