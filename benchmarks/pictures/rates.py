"""The picture of speed-up by model and rate of the links: a map, simulated."""

from typing import Any

import matplotlib.pyplot as plt

from prophet_mx.simulation.cluster import MESSAGE_COSTS

from ..comparison.cells import model
from .speedups import COMPUTE, GOODPUT_SHARE, MACHINES, MODELS, RATES_GBIT, speed_up
from .style import MUTED


def draw_rates() -> Any:
    """The figure."""
    gains = [[speed_up(name, gbit, MESSAGE_COSTS) for gbit in RATES_GBIT] for name in MODELS]
    figure, axes = plt.subplots(figsize=(8.6, 4.8))
    most = max(map(max, gains))
    axes.imshow(gains, aspect="auto", cmap="Blues", vmin=1.0, vmax=most * 1.1)
    for row, line in enumerate(gains):
        for place, gain in enumerate(line):
            axes.text(place, row, f"{gain:.2f}", ha="center", va="center", color="white" if gain > 1 + 0.7 * (most - 1) else "black")
    axes.set_xticks(range(len(RATES_GBIT)), [f"{gbit}" for gbit in RATES_GBIT])
    axes.set_yticks(range(len(MODELS)), [model(name) for name in MODELS])
    axes.set_xlabel("rate of the links, Gbit/s")
    axes.set_title("How many times as fast as plain dist_sync")
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    machines = f"{MACHINES} workers and {MACHINES} servers, {COMPUTE * 1e3:.0f} ms of computing"
    figure.text(0.012, 0.015, f"Simulated: {machines}, links carry {GOODPUT_SHARE:.1%} of their rate.", fontsize=9, color=MUTED)
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    return figure
