"""What the pictures have in common: words and colours."""

from typing import Any

import matplotlib

from prophet_mx.monitoring.report_shapes import ALARM, GRID, INKS, MUTED, TEXT

from .speedups import NAMES

STALL = INKS["stalled"].colour


def layers() -> Any:
    """The colours of the layers: a sequential map, from the last layer (0, pale) to the first (1, dark)."""
    whole = matplotlib.colormaps["YlGnBu"]
    return matplotlib.colors.LinearSegmentedColormap.from_list("layers", [whole(0.38 + 0.62 * place / 20) for place in range(21)])


def settle() -> None:
    """Fonts and lines of all pictures."""
    matplotlib.rcParams.update(
        {
            "font.size": 10.5,
            "axes.titlesize": 12,
            "axes.titlelocation": "left",
            "axes.titleweight": "bold",
            "axes.edgecolor": MUTED,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "text.color": TEXT,
            "axes.labelcolor": TEXT,
            "xtick.color": TEXT,
            "ytick.color": TEXT,
            "grid.color": GRID,
            "hatch.linewidth": 0.8,
            "svg.hashsalt": "prophet_mx",
            "svg.fonttype": "none",  # text stays text, which tests read
            "font.family": ["DejaVu Sans", "sans-serif"],
        }
    )


__all__ = ["ALARM", "GRID", "INKS", "MUTED", "NAMES", "STALL", "TEXT", "layers", "settle"]
