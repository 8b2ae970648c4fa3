"""The picture of a job's machines: workers, servers and the links between them, and what travels."""

from typing import Any, Tuple

import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch

from .style import INKS, MUTED, TEXT

WORKERS, SERVERS = 3, 2
SIZE = (2.1, 1.0)  # of a machine


def draw_machines() -> Any:
    """The figure."""
    figure, axes = plt.subplots(figsize=(8.6, 4.2))
    workers = [(0.2, 3.2 - 1.5 * number) for number in range(WORKERS)]
    servers = [(6.9, 2.45 - 1.5 * number) for number in range(SERVERS)]
    for start in workers:
        for end in servers:
            _link(axes, start, end)
    for number, place in enumerate(workers):
        _machine(axes, place, f"worker {number}", "GPU, prophet_mx", INKS["backward"].colour)
    for number, place in enumerate(servers):
        _machine(axes, place, f"server {number}", "adds up, updates", INKS["compute"].colour)
    axes.annotate("gradients", (5.6, 4.35), (3.3, 4.35), va="center", ha="left", arrowprops={"arrowstyle": "-|>", "color": TEXT})
    axes.annotate("values", (3.3, -0.35), (5.6, -0.35), va="center", ha="right", arrowprops={"arrowstyle": "-|>", "color": TEXT})
    axes.text(4.55, 3.95, "prophet_mx decides which one goes first", ha="center", color=MUTED, fontsize=9.5)
    axes.set(xlim=(0, 9.2), ylim=(-0.7, 4.7))
    axes.set_axis_off()
    figure.tight_layout()
    return figure


def _machine(axes: Any, place: Tuple[float, float], name: str, what: str, colour: str) -> None:
    axes.add_patch(FancyBboxPatch(place, *SIZE, boxstyle="round,pad=0.05", facecolor="white", edgecolor=colour, linewidth=1.8, zorder=2))
    middle = place[0] + SIZE[0] / 2
    axes.text(middle, place[1] + 0.66, name, ha="center", va="center", fontweight="bold", zorder=3)
    axes.text(middle, place[1] + 0.28, what, ha="center", va="center", fontsize=9.5, color=MUTED, zorder=3)


def _link(axes: Any, start: Tuple[float, float], end: Tuple[float, float]) -> None:
    axes.plot((start[0] + SIZE[0], end[0]), (start[1] + SIZE[1] / 2, end[1] + SIZE[1] / 2), color=MUTED, linewidth=1.1, zorder=1)
