"""The report's charts but for the one of a single iteration. Pure: figures in, shapes out."""

from typing import List, Sequence, Tuple

from .report_shapes import (
    GRID,
    INKS,
    LEFT,
    LINES,
    MUTED,
    PLOT,
    WIDTH,
    Chart,
    Curve,
    Ink,
    Line,
    Rect,
    Shape,
    Text,
    ms,
    plate,
    shorten,
    ticks,
    time_axis,
)
from .trace_figures import PARTS, Figures, busy_shares
from .trace_format import STAGES


def composition(workers: Sequence[Figures], names: Sequence[str]) -> Chart:
    """A bar per worker: what its iterations are made of."""
    return bars([[(part, worker.part(part)) for part in PARTS] for worker in workers], names, 30, "parts of an iteration, a row per worker")


def first_layer(workers: Sequence[Figures], names: Sequence[str]) -> Chart:
    """A bar per worker: what the first layer's values wait for."""
    rows = [[(stage, worker.first_wait(stage)) for stage in STAGES] for worker in workers]
    return bars(rows, names, 22, "wait of the first layer, a row per worker")


def bars(rows: Sequence[Sequence[Tuple[str, float]]], names: Sequence[str], height: float, label: str) -> Chart:
    """A bar of such a height per row, made of named times one after the other."""
    longest = max(1e-6, max(sum(seconds for _, seconds in row) for row in rows))
    scale, below = PLOT / longest, (height + 8) * len(rows)
    shapes: List[Shape] = list(time_axis(longest, below + 6, 0))
    for place, (row, name) in enumerate(zip(rows, names)):
        x, y = float(LEFT), (height + 8) * place + 4
        shapes.append(Text(LEFT - 8, y + height / 2 + 4, shorten(name, 24), "end"))
        for part, seconds in row:
            shapes.append(Rect(x, y, seconds * scale, height, INKS[part], f"{name}: {part} {ms(seconds)}"))
            if seconds * scale > 72:
                shapes += plate(x + seconds * scale / 2, y + height / 2 + 4, ms(seconds))
            x += seconds * scale
    return Chart(below + 30, shapes, label)


def curves(series: Sequence[Sequence[Tuple[float, float]]], height: float, unit: str, label: str) -> Chart:
    """Lines over a common pair of axes: the horizontal axis is a count (of iterations), the vertical one begins at 0."""
    points = [point for one in series for point in one]
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    top = 1.08 * max(y for _, y in points) or 1.0
    span = max(1e-9, right - left)

    def place(x: float, y: float) -> Tuple[float, float]:
        return LEFT + PLOT * (x - left) / span, height - height * y / top

    shapes: List[Shape] = []
    for tick in ticks(top, 4):
        y = height - height * tick / top
        shapes += [Line(LEFT, y, WIDTH - 10, y, GRID), Text(LEFT - 8, y + 4, f"{tick:g} {unit}", "end", 11, MUTED)]
    for tick in ticks(span):
        if tick == int(tick):
            shapes.append(Text(LEFT + PLOT * tick / span, height + 15, f"{left + tick:g}", "middle", 11, MUTED))
    for one, ink in zip(series, LINES):
        shapes.append(Curve([place(x, y) for x, y in one], ink))
    return Chart(height + 22, shapes, label)


def utilisation(figures: Figures, seconds: float, ink: Ink) -> Chart:
    """How busy the links were over the median iteration, drawn to a scale of ``seconds``."""
    height, scale = 90, PLOT / seconds
    shares = busy_shares(figures.trace, figures.median)
    width = figures.median.seconds / len(shares) * scale
    shapes: List[Shape] = [
        *time_axis(seconds, height, 0),
        Text(LEFT - 8, 10, "100%", "end", 11, MUTED),
        Text(LEFT - 8, height, "0%", "end", 11, MUTED),
    ]
    shapes += [
        Rect(LEFT + place * width, height - height * share, width, height * share, Ink(ink.colour), f"{100 * share:.0f}%")
        for place, share in enumerate(shares)
        if share > 0
    ]
    return Chart(height + 32, shapes, "link utilisation over one iteration")


def step_pattern(figures: Figures, seconds: float, ink: Ink) -> Chart:
    """A bar per step at the time it becomes ready, as high as its bytes."""
    height, scale = 110, PLOT / seconds
    top = max([step.bytes for step in figures.steps] + [1])
    shapes: List[Shape] = [*time_axis(seconds, height, 0), Text(LEFT - 8, 12, f"{top / 1e6:.3g} MB", "end", 11, MUTED)]
    for number, step in enumerate(figures.steps):
        tall = (height - 4) * step.bytes / top
        about = f"step {number}: after {ms(step.begin)}, {step.units} units, {step.bytes / 1e6:.3g} MB"
        shapes.append(Rect(LEFT + step.begin * scale, height - tall, max(2.5, step.seconds * scale), tall, Ink(ink.colour), about))
    return Chart(height + 32, shapes, "step pattern")
