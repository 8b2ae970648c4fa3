"""The picture of measured times, model by model: a bar per method, and the least that is possible."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from .speedups import BOUND, bars
from .style import INKS, MUTED, TEXT

COLOURS = ("#b9bec7", "#e0b070", "#9fc3a2", "#4f9b6a")  # of the other methods, in their order
OURS, SHOWN = "prophet", "prophet_mx"
WIDTH = 0.8  # of all bars of a model


def draw_models(results: Path) -> Any:
    """The figure; it says so where nothing is published."""
    found = bars(results)
    figure, axes = plt.subplots(figsize=(9.6, 4.4))
    if not found:
        axes.text(0.5, 0.5, "Nothing measured is published yet.", ha="center", transform=axes.transAxes)
        return figure
    names = [name for name in dict.fromkeys(name for each in found for name in each.times) if name not in (OURS, BOUND)] + [OURS]
    each_width = WIDTH / len(names)
    for place, name in enumerate(names):
        at = [number - WIDTH / 2 + (place + 0.5) * each_width for number in range(len(found))]
        heights = [each.times.get(name, 0.0) for each in found]
        colour = INKS["backward"].colour if name == OURS else COLOURS[place % len(COLOURS)]
        axes.bar(at, heights, each_width * 0.92, color=colour, label=SHOWN if name == OURS else name)
        if name == OURS:
            for x, height in zip(at, heights):
                axes.text(x, height + 3, f"{height:.0f}", ha="center", va="bottom", fontsize=9, fontweight="bold", color=colour)
    for number, each in enumerate(found):
        if BOUND in each.times:
            ends = (number - WIDTH / 2, number + WIDTH / 2)
            label = "no order can be faster" if number == 0 else None
            axes.plot(ends, [each.times[BOUND]] * 2, color=TEXT, linewidth=1.4, linestyle=":", label=label)
    axes.set_xticks(range(len(found)), [each.model for each in found])
    axes.set_ylabel("ms per iteration")
    axes.set_title("Time of an iteration: shorter is better")
    axes.tick_params(axis="x", length=0)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncol=6, frameon=False, fontsize=9.5)
    figure.text(0.012, 0.015, "Real jobs: two workers, one server, 1 Gbit/s; computing is emulated.", fontsize=9, color=MUTED)
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    return figure
