"""The picture of one iteration before and after, on one time axis: what a worker computes, when it stalls, what its link carries."""

from typing import Any, Sequence

import matplotlib.pyplot as plt

from prophet_mx.quantities import format_rate

from .recordings import Recording
from .spans import DrawnIteration, Span
from .speedups import conditions
from .style import ALARM, GRID, MUTED, NAMES, STALL, TEXT, layers

LANES = ("computes", "sends\ngradients", "receives\nvalues")
HALF = 0.3  # of a lane's bar
SEEN = 1e-3  # seconds: a shorter stall is counted, but not drawn
ORIGIN = "Recorded in two real jobs. Computing is emulated: it takes its time, and no processor."


def draw_iteration(recording: Recording) -> Any:
    """The figure."""
    before, after = (recording.iterations[method] for method in NAMES)
    figure, panels = plt.subplots(2, 1, figsize=(9.6, 5.6), sharex=True)
    for axes, one, name in zip(panels, (before, after), NAMES.values()):
        _panel(axes, one, recording.about["gradients"])
        axes.set_title(f"{name}: {one.seconds * 1e3:.0f} ms per iteration, of which {one.stalled * 1e3:.0f} ms stalled")
    _saved(panels[1], after.seconds, before.seconds)
    panels[1].set_xlabel("ms from the start of backward")
    panels[1].set_xlim(0, 1e3 * before.seconds * 1.02)
    cell = recording.cell
    about = conditions(cell, recording.about["megabytes"], recording.about["compute_ms"])
    figure.text(0.012, 0.05, f"{about}, {format_rate(cell.rate)}.", fontsize=9, color=MUTED)
    figure.text(0.012, 0.015, ORIGIN, fontsize=9, color=MUTED)
    figure.tight_layout(rect=(0, 0.08, 1, 1), h_pad=1.6)
    _key(figure)
    return figure


def _panel(axes: Any, one: DrawnIteration, gradients: int) -> None:
    colours = layers()

    def bars(lane: int, spans: Sequence[Span]) -> None:
        for span in spans:
            colour = colours(1 - span.gradient / max(1, gradients - 1))
            axes.barh(lane, 1e3 * (span.end - span.begin), 2 * HALF, 1e3 * span.begin, color=colour, edgecolor=colour, linewidth=0.3)

    bars(0, one.backward)
    bars(0, one.forward)
    bars(1, one.sends)
    bars(2, one.receives)
    for begin, end in (stall for stall in one.stalls if stall[1] - stall[0] > SEEN):
        axes.barh(0, 1e3 * (end - begin), 2 * HALF, 1e3 * begin, color="white", edgecolor=STALL, hatch="////", linewidth=0.8)
    longest = max(one.stalls, key=lambda stall: stall[1] - stall[0], default=(0.0, 0.0))
    _label(axes, one.backward[0].begin, one.backward[-1].end, "backward")
    _label(axes, one.forward[0].begin, one.forward[-1].end, "forward")
    if longest[1] - longest[0] > one.seconds / 6:
        _label(axes, *longest, "stalled", ALARM)
    _first_layer(axes, one)
    axes.set_yticks(range(len(LANES)), LANES)
    axes.set_ylim(2.55, -0.75)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x", color=GRID)
    axes.set_axisbelow(True)


def _label(axes: Any, begin: float, end: float, text: str, colour: str = TEXT) -> None:
    axes.text(500 * (begin + end), -HALF - 0.06, text, ha="center", va="bottom", color=colour, fontsize=10)


def _first_layer(axes: Any, one: DrawnIteration) -> None:
    """An arrow from the arrival of the first layer's values to the forward that they let begin."""
    at = 1e3 * one.first_layer
    axes.annotate(
        "", (at, HALF), (at, 2 - HALF), arrowprops={"arrowstyle": "-|>", "color": ALARM, "linewidth": 1.6, "shrinkA": 0, "shrinkB": 0}
    )
    text = axes.annotate(
        "first layer back: forward starts", (at, 0.5), (6, 0), textcoords="offset points", va="center", color=ALARM, fontsize=9.5
    )
    text.set_in_layout(False)  # it may reach beyond the axes, which are not to shrink for it


def _saved(axes: Any, after: float, before: float) -> None:
    axes.axvline(1e3 * after, color=TEXT, linewidth=1, linestyle=":")
    axes.annotate(
        "",
        (1e3 * after, 0),
        (1e3 * before, 0),
        arrowprops={"arrowstyle": "<|-|>", "color": TEXT, "linewidth": 1.4, "shrinkA": 0, "shrinkB": 0},
    )
    saved = f"{1e3 * (before - after):.0f} ms saved:\n{before / after:.2f} times as fast"
    axes.text(500 * (before + after), -0.12, saved, ha="center", va="bottom", color=TEXT, fontweight="bold")


def _key(figure: Any) -> None:
    """The colours of the layers, as a strip at the bottom right."""
    axes = figure.add_axes((0.76, 0.035, 0.13, 0.022))
    axes.imshow([list(range(100))], aspect="auto", cmap=layers())
    axes.set_axis_off()
    axes.text(-3, 0, "last layer", ha="right", va="center", fontsize=9)
    axes.text(102, 0, "first layer", ha="left", va="center", fontsize=9)
