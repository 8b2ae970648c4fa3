"""The report's charts as inline SVG. Pure: figures in, text out. Every name that comes from a trace is escaped."""
import math
from html import escape
from typing import Iterator, List, Sequence, Tuple

from .trace import Passage
from .trace_figures import PARTS, Figures, busy_shares

COLOURS = {"backward": "#4477aa", "stalled": "#cc3311", "arriving": "#ddaa33", "compute": "#228833",
           "wait": "#d5d5d5", "wire": "#33659e", "answer": "#99c2e8", "unpack": "#b8dcb0"}
LINES = ("#33659e", "#cc6611")              # of the first and the second trace
WIDTH = 1000                                # of a chart
LEFT = 150                                  # of that, for names


def svg(height: float, parts: Sequence[str], label: str) -> str:
    """An SVG element of the report's width."""
    return (f'<svg viewBox="0 0 {WIDTH} {height:.0f}" width="100%" role="img" aria-label="{escape(label)}">'
            + "".join(parts) + "</svg>")


def rect(x: float, y: float, width: float, height: float, colour: str, title: str = "") -> str:
    """A rectangle with a tooltip."""
    inside = f"><title>{escape(title)}</title></rect>" if title else "/>"
    return f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.3):.2f}" height="{height:.2f}" fill="{colour}"{inside}'


def text(x: float, y: float, content: str, anchor: str = "start", size: float = 12, colour: str = "#333") -> str:
    """A line of text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size:.1f}" fill="{colour}">{escape(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str = "#ccc", dash: str = "") -> str:
    """A thin line."""
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{dashed}/>'


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


def time_axis(seconds: float, y: float, top: float) -> Iterator[str]:
    """Ticks of a time axis from 0 at LEFT to ``seconds`` at the right, with lines up to ``top``."""
    for tick in ticks(1000 * seconds):
        x = LEFT + (WIDTH - LEFT - 10) * tick / 1000 / seconds
        yield line(x, top, x, y, "#e8e8e8")
        yield text(x, y + 14, f"{tick:g}", "middle", 11, "#777")
    yield text(LEFT - 8, y + 14, "ms", "end", 11, "#777")


def composition(all_figures: Sequence[Figures], names: Sequence[str]) -> str:
    """A bar per trace: what its iterations are made of."""
    longest = max(sum(figures.part(part) for part in PARTS) for figures in all_figures)
    scale = (WIDTH - LEFT - 10) / longest
    parts: List[str] = list(time_axis(longest, 44.0 * len(all_figures) + 6, 0))
    for place, (figures, name) in enumerate(zip(all_figures, names)):
        x, y = float(LEFT), 44 * place + 4
        parts.append(text(LEFT - 8, y + 24, shorten(name, 21), "end"))
        for part in PARTS:
            seconds = figures.part(part)
            parts.append(rect(x, y, seconds * scale, 36, COLOURS[part], f"{part}: {ms(seconds)}"))
            if seconds * scale > 62:
                parts.append(text(x + seconds * scale / 2, y + 22, ms(seconds), "middle", 12, "#fff"))
            x += seconds * scale
    return svg(44 * len(all_figures) + 36, parts, "parts of an iteration")


def first_layer(all_figures: Sequence[Figures], names: Sequence[str]) -> str:
    """A bar per trace: what the first layer's values wait for."""
    stages = ("wait", "wire", "answer", "unpack")
    longest = max(1e-6, max(sum(figures.first_wait(stage) for stage in stages) for figures in all_figures))
    scale = (WIDTH - LEFT - 10) / longest
    parts: List[str] = list(time_axis(longest, 34.0 * len(all_figures) + 6, 0))
    for place, (figures, name) in enumerate(zip(all_figures, names)):
        x, y = float(LEFT), 34 * place + 4
        parts.append(text(LEFT - 8, y + 18, shorten(name, 21), "end"))
        for stage in stages:
            seconds = figures.first_wait(stage)
            parts.append(rect(x, y, seconds * scale, 26, COLOURS[stage], f"{stage}: {ms(seconds)}"))
            x += seconds * scale
    return svg(34 * len(all_figures) + 36, parts, "wait of the first layer")


def curves(series: Sequence[Sequence[Tuple[float, float]]], height: float, unit: str, label: str) -> str:
    """Lines over a common pair of axes: the horizontal axis is a count (of iterations), the vertical one begins at 0."""
    points = [point for one in series for point in one]
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    top = 1.08 * max(y for _, y in points) or 1.0
    span = max(1e-9, right - left)

    def place(x: float, y: float) -> str:
        return f"{LEFT + (WIDTH - LEFT - 10) * (x - left) / span:.1f},{height - height * y / top:.1f}"

    parts = []
    for tick in ticks(top, 4):
        parts += [line(LEFT, height - height * tick / top, WIDTH - 10, height - height * tick / top, "#e8e8e8"),
                  text(LEFT - 8, height - height * tick / top + 4, f"{tick:g} {unit}", "end", 11, "#777")]
    for tick in ticks(span):
        parts.append(text(LEFT + (WIDTH - LEFT - 10) * tick / span, height + 15, f"{left + tick:g}", "middle", 11, "#777"))
    for one, colour in zip(series, LINES):
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.6" points="{" ".join(place(x, y) for x, y in one)}"/>')
    return svg(height + 22, parts, label)


def utilisation(figures: Figures, seconds: float, colour: str) -> str:
    """How busy the links were over the median iteration, drawn to a scale of ``seconds``."""
    height, scale = 90, (WIDTH - LEFT - 10) / seconds
    shares = busy_shares(figures.trace, figures.median)
    width = figures.median.seconds / len(shares) * scale
    parts = list(time_axis(seconds, height, 0)) + [text(LEFT - 8, 10, "100%", "end", 11, "#777"),
                                                   text(LEFT - 8, height, "0%", "end", 11, "#777")]
    parts += [rect(LEFT + place * width, height - height * share, width, height * share, colour, f"{100 * share:.0f}%")
              for place, share in enumerate(shares) if share > 0]
    return svg(height + 32, parts, "link utilisation over one iteration")


def step_pattern(figures: Figures, seconds: float, colour: str) -> str:
    """A bar per step at the time it becomes ready, as high as its bytes."""
    height, scale = 110, (WIDTH - LEFT - 10) / seconds
    top = max([step.bytes for step in figures.steps] + [1])
    parts = list(time_axis(seconds, height, 0)) + [text(LEFT - 8, 12, f"{top / 1e6:.3g} MB", "end", 11, "#777")]
    for number, step in enumerate(figures.steps):
        parts.append(rect(LEFT + step.begin * scale, height - (height - 4) * step.bytes / top, max(2.5, step.seconds * scale),
                          (height - 4) * step.bytes / top, colour,
                          f"step {number}: after {ms(step.begin)}, {step.units} units, {step.bytes / 1e6:.3g} MB"))
    return svg(height + 32, parts, "step pattern")


def gantt(figures: Figures, seconds: float) -> str:
    """The median iteration: a row per parameter, most urgent at the top, drawn to a scale of ``seconds``."""
    iteration, trace = figures.median, figures.trace
    passages = trace.passages[iteration.number]
    order = sorted({trace.units[unit].parameter: trace.units[unit].rank for unit in sorted(passages, reverse=True)}.items(),
                   key=lambda item: item[1])
    rows = {parameter: row for row, (parameter, _) in enumerate(order)}
    pitch = max(4.0, min(18.0, 900 / len(rows)))
    top, height, scale = 6.0, pitch * len(rows) + 6, (WIDTH - LEFT - 10) / seconds
    parts = list(time_axis(seconds, height + 2, 0))
    named = max(1, math.ceil(10 / pitch))
    parts += [text(LEFT - 8, top + pitch * row + min(pitch, 9) - 1, shorten(parameter, 26), "end", 9.5, "#555")
              for parameter, row in rows.items() if row % named == 0]
    for stage in ("wait", "answer", "unpack", "wire"):                  # of a parameter's units, what is on the wire is on top
        for unit, passage in sorted(passages.items()):
            begin, end = _stage(passage, stage)
            if end > begin:
                begin, end = begin - iteration.begin, min(end - iteration.begin, seconds)
                y = top + pitch * rows[trace.units[unit].parameter]
                parts.append(rect(LEFT + begin * scale, y, (end - begin) * scale, pitch * 0.85, COLOURS[stage],
                                  f"{trace.units[unit].name}: {stage} {ms(end - begin)}, from {ms(begin)}"))
    marks = ((iteration.last_ready, "last gradient", "end"), (iteration.first_there, "first layer's values", "start"),
             (iteration.end, "next iteration", "end"))
    for place, (at, what, anchor) in enumerate(marks):                  # the last one below the others, which may be near
        x, y = LEFT + min(seconds, at - iteration.begin) * scale, height + 29 + 13 * (place == 2)
        parts += [line(x, 0, x, y - 11, "#cc3311", "3 3"), text(x, y, what, anchor, 11, "#cc3311")]
    return svg(height + 48, parts, "one iteration, a row per parameter")


def _stage(passage: Passage, stage: str) -> Tuple[float, float]:
    return {"wait": (passage.ready, passage.wire), "wire": (passage.wire, passage.drained),
            "answer": (passage.drained, passage.answered), "unpack": (passage.answered, passage.landed)}[stage]


def shorten(name: str, length: int) -> str:
    """A name that is not longer than ``length``, cut at its beginning: what differs is mostly at the end."""
    return name if len(name) <= length else "…" + name[1 - length:]
