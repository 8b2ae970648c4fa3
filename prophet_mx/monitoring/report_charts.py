"""The report's charts. Pure: figures in, shapes out; ``templates/chart.svg`` draws them."""

import math
from dataclasses import dataclass
from typing import ClassVar, Iterator, List, Sequence, Tuple, Union

from .trace import Passage
from .trace_figures import PARTS, Figures, busy_shares
from .trace_format import STAGES

COLOURS = {
    "backward": "#4477aa",
    "stalled": "#cc3311",
    "arriving": "#ddaa33",
    "compute": "#228833",
    "wait": "#d5d5d5",
    "wire": "#33659e",
    "answer": "#99c2e8",
    "unpack": "#b8dcb0",
}
LINES = ("#33659e", "#cc6611")  # of the first and the second trace
WIDTH = 1000  # of a chart
LEFT = 150  # of that, for names


@dataclass(frozen=True)
class Rect:
    """A rectangle with a tooltip."""

    kind: ClassVar[str] = "rect"
    x: float
    y: float
    width: float
    height: float
    colour: str
    title: str


@dataclass(frozen=True)
class Text:
    """A line of text."""

    kind: ClassVar[str] = "text"
    x: float
    y: float
    content: str
    anchor: str = "start"
    size: float = 12
    colour: str = "#333"


@dataclass(frozen=True)
class Line:
    """A thin line."""

    kind: ClassVar[str] = "line"
    x1: float
    y1: float
    x2: float
    y2: float
    colour: str
    dash: str = ""


@dataclass(frozen=True)
class Curve:
    """A line through many points."""

    kind: ClassVar[str] = "curve"
    points: Sequence[Tuple[float, float]]
    colour: str


Shape = Union[Rect, Text, Line, Curve]


@dataclass(frozen=True)
class Chart:
    """A chart of the report's width; later shapes are drawn over earlier ones."""

    height: float
    shapes: Sequence[Shape]
    label: str
    width: int = WIDTH


def ms(seconds: float) -> str:
    """A time in milliseconds, with three digits that count."""
    value = 1000 * seconds
    return f"{value:.0f} ms" if abs(value) >= 100 else f"{value:.1f} ms" if abs(value) >= 1 else f"{value:.2f} ms"


def ticks(top: float, count: int = 8) -> List[float]:
    """Round numbers from 0 to ``top``, about ``count`` of them."""
    if top <= 0:
        return [0.0]
    step = 10 ** math.floor(math.log10(top / count))
    step *= next(factor for factor in (1, 2, 5, 10) if top / (step * factor) <= count)
    return [step * i for i in range(int(top / step + 1e-9) + 1)]


def time_axis(seconds: float, y: float, top: float) -> Iterator[Shape]:
    """Ticks of a time axis from 0 at LEFT to ``seconds`` at the right, with lines up to ``top``."""
    for tick in ticks(1000 * seconds):
        x = LEFT + (WIDTH - LEFT - 10) * tick / 1000 / seconds
        yield Line(x, top, x, y, "#e8e8e8")
        yield Text(x, y + 14, f"{tick:g}", "middle", 11, "#777")
    yield Text(LEFT - 8, y + 14, "ms", "end", 11, "#777")


def composition(all_figures: Sequence[Figures], names: Sequence[str]) -> Chart:
    """A bar per trace: what its iterations are made of."""
    return bars([[(part, figures.part(part)) for part in PARTS] for figures in all_figures], names, 36, "parts of an iteration")


def first_layer(all_figures: Sequence[Figures], names: Sequence[str]) -> Chart:
    """A bar per trace: what the first layer's values wait for."""
    return bars([[(stage, figures.first_wait(stage)) for stage in STAGES] for figures in all_figures], names, 26, "wait of the first layer")


def bars(rows: Sequence[Sequence[Tuple[str, float]]], names: Sequence[str], height: float, label: str) -> Chart:
    """A bar of such a height per row, made of named times one after the other."""
    longest = max(1e-6, max(sum(seconds for _, seconds in row) for row in rows))
    scale, below = (WIDTH - LEFT - 10) / longest, (height + 8) * len(rows)
    shapes: List[Shape] = list(time_axis(longest, below + 6, 0))
    for place, (row, name) in enumerate(zip(rows, names)):
        x, y = float(LEFT), (height + 8) * place + 4
        shapes.append(Text(LEFT - 8, y + height / 2 + 6, shorten(name, 21), "end"))
        for part, seconds in row:
            shapes.append(Rect(x, y, seconds * scale, height, COLOURS[part], f"{part}: {ms(seconds)}"))
            if part in PARTS and seconds * scale > 62:
                shapes.append(Text(x + seconds * scale / 2, y + height / 2 + 4, ms(seconds), "middle", 12, "#fff"))
            x += seconds * scale
    return Chart(below + 36, shapes, label)


def curves(series: Sequence[Sequence[Tuple[float, float]]], height: float, unit: str, label: str) -> Chart:
    """Lines over a common pair of axes: the horizontal axis is a count (of iterations), the vertical one begins at 0."""
    points = [point for one in series for point in one]
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    top = 1.08 * max(y for _, y in points) or 1.0
    span = max(1e-9, right - left)

    def place(x: float, y: float) -> Tuple[float, float]:
        return LEFT + (WIDTH - LEFT - 10) * (x - left) / span, height - height * y / top

    shapes: List[Shape] = []
    for tick in ticks(top, 4):
        shapes += [
            Line(LEFT, height - height * tick / top, WIDTH - 10, height - height * tick / top, "#e8e8e8"),
            Text(LEFT - 8, height - height * tick / top + 4, f"{tick:g} {unit}", "end", 11, "#777"),
        ]
    for tick in ticks(span):
        shapes.append(Text(LEFT + (WIDTH - LEFT - 10) * tick / span, height + 15, f"{left + tick:g}", "middle", 11, "#777"))
    for one, colour in zip(series, LINES):
        shapes.append(Curve([place(x, y) for x, y in one], colour))
    return Chart(height + 22, shapes, label)


def utilisation(figures: Figures, seconds: float, colour: str) -> Chart:
    """How busy the links were over the median iteration, drawn to a scale of ``seconds``."""
    height, scale = 90, (WIDTH - LEFT - 10) / seconds
    shares = busy_shares(figures.trace, figures.median)
    width = figures.median.seconds / len(shares) * scale
    shapes: List[Shape] = [
        *time_axis(seconds, height, 0),
        Text(LEFT - 8, 10, "100%", "end", 11, "#777"),
        Text(LEFT - 8, height, "0%", "end", 11, "#777"),
    ]
    shapes += [
        Rect(LEFT + place * width, height - height * share, width, height * share, colour, f"{100 * share:.0f}%")
        for place, share in enumerate(shares)
        if share > 0
    ]
    return Chart(height + 32, shapes, "link utilisation over one iteration")


def step_pattern(figures: Figures, seconds: float, colour: str) -> Chart:
    """A bar per step at the time it becomes ready, as high as its bytes."""
    height, scale = 110, (WIDTH - LEFT - 10) / seconds
    top = max([step.bytes for step in figures.steps] + [1])
    shapes: List[Shape] = [*time_axis(seconds, height, 0), Text(LEFT - 8, 12, f"{top / 1e6:.3g} MB", "end", 11, "#777")]
    for number, step in enumerate(figures.steps):
        shapes.append(
            Rect(
                LEFT + step.begin * scale,
                height - (height - 4) * step.bytes / top,
                max(2.5, step.seconds * scale),
                (height - 4) * step.bytes / top,
                colour,
                f"step {number}: after {ms(step.begin)}, {step.units} units, {step.bytes / 1e6:.3g} MB",
            )
        )
    return Chart(height + 32, shapes, "step pattern")


def gantt(figures: Figures, seconds: float) -> Chart:
    """The median iteration: a row per parameter, most urgent at the top, drawn to a scale of ``seconds``."""
    iteration, trace = figures.median, figures.trace
    passages = trace.passages[iteration.number]
    order = sorted(
        {trace.units[unit].parameter: trace.units[unit].rank for unit in sorted(passages, reverse=True)}.items(), key=lambda item: item[1]
    )
    rows = {parameter: row for row, (parameter, _) in enumerate(order)}
    pitch = max(4.0, min(18.0, 900 / len(rows)))
    top, height, scale = 6.0, pitch * len(rows) + 6, (WIDTH - LEFT - 10) / seconds
    shapes: List[Shape] = list(time_axis(seconds, height + 2, 0))
    named = max(1, math.ceil(10 / pitch))
    shapes += [
        Text(LEFT - 8, top + pitch * row + min(pitch, 9) - 1, shorten(parameter, 26), "end", 9.5, "#555")
        for parameter, row in rows.items()
        if row % named == 0
    ]
    for stage in ("wait", "answer", "unpack", "wire"):  # of a parameter's units, what is on the wire is on top
        for unit, passage in sorted(passages.items()):
            begin, end = _stage(passage, stage)
            if end > begin:
                begin, end = begin - iteration.begin, min(end - iteration.begin, seconds)
                y = top + pitch * rows[trace.units[unit].parameter]
                shapes.append(
                    Rect(
                        LEFT + begin * scale,
                        y,
                        (end - begin) * scale,
                        pitch * 0.85,
                        COLOURS[stage],
                        f"{trace.units[unit].name}: {stage} {ms(end - begin)}, from {ms(begin)}",
                    )
                )
    marks = (
        (iteration.last_ready, "last gradient", "end"),
        (iteration.first_there, "first layer's values", "start"),
        (iteration.end, "next iteration", "end"),
    )
    for place, (at, what, anchor) in enumerate(marks):  # the last one below the others, which may be near
        x, y = LEFT + min(seconds, at - iteration.begin) * scale, height + 29 + 13 * (place == 2)
        shapes += [Line(x, 0, x, y - 11, "#cc3311", "3 3"), Text(x, y, what, anchor, 11, "#cc3311")]
    return Chart(height + 48, shapes, "one iteration, a row per parameter")


def _stage(passage: Passage, stage: str) -> Tuple[float, float]:
    return {
        "wait": (passage.ready, passage.wire),
        "wire": (passage.wire, passage.drained),
        "answer": (passage.drained, passage.answered),
        "unpack": (passage.answered, passage.landed),
    }[stage]


def shorten(name: str, length: int) -> str:
    """A name that is not longer than ``length``, cut at its beginning: what differs is mostly at the end."""
    return name if len(name) <= length else "…" + name[1 - length :]
