"""What the report's charts are made of: shapes, inks, axes. Pure; ``templates/chart.svg`` draws them.

What colours tell apart, luminance and patterns tell apart as well: any two parts of an iteration, any two stages of a unit, and each of
them and the page have a contrast of 1.5 or more. Text is dark on the page; on a bar it has a plate of the page's colour.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Dict, Iterator, List, NamedTuple, Sequence, Tuple, Union


class Ink(NamedTuple):
    """A colour, and the name of the pattern that is drawn over it ('' for none)."""

    colour: str
    pattern: str = ""


PAGE, TEXT, MUTED, ALARM, GOOD, GRID = "#ffffff", "#222222", "#555555", "#a3260f", "#0b6b3a", "#dddddd"
INKS: Dict[str, Ink] = {
    "backward": Ink("#1b3a6b"),
    "stalled": Ink("#c8401a", "stripes"),
    "arriving": Ink("#e8c95a", "dots"),
    "compute": Ink("#55a868"),
    "wait": Ink("#cccccc", "dots"),
    "wire": Ink("#1b3a6b"),
    "answer": Ink("#3b76b5", "stripes"),
    "unpack": Ink("#73b0a0"),
    "step": Ink(MUTED),
    "block": Ink(PAGE),
}
LINES = (Ink("#1b3a6b", "circle"), Ink("#c8401a", "square"))  # of the first and the second job; the patterns are the points' shapes
WIDTH = 1000  # of a chart
LEFT = 160  # of that, for names
PLOT = WIDTH - LEFT - 10


@dataclass(frozen=True)
class Rect:
    """A rectangle with a tooltip; ``outline`` is a colour."""

    kind: ClassVar[str] = "rect"
    x: float
    y: float
    width: float
    height: float
    ink: Ink
    title: str = ""
    outline: str = ""


@dataclass(frozen=True)
class Text:
    """A line of text."""

    kind: ClassVar[str] = "text"
    x: float
    y: float
    content: str
    anchor: str = "start"
    size: float = 12
    colour: str = TEXT


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
    """A line through many points, which are marked unless they are too many to be told apart."""

    kind: ClassVar[str] = "curve"
    points: Sequence[Tuple[float, float]]
    ink: Ink

    @property
    def marks(self) -> Sequence[Tuple[float, float]]:
        """The points that are marked."""
        return self.points if len(self.points) <= 120 else ()


Shape = Union[Rect, Text, Line, Curve]


@dataclass(frozen=True)
class Chart:
    """A chart of the report's width; later shapes are drawn over earlier ones."""

    height: float
    shapes: Sequence[Shape]
    label: str
    width: int = WIDTH


def ms(seconds: float) -> str:
    """A time in milliseconds, with three digits that count.

    >>> ms(1.4801), ms(0.026), ms(0.00012345)
    ('1,480 ms', '26 ms', '0.123 ms')
    """
    return f"{digits(1000 * seconds)} ms"


def digits(value: float) -> str:
    """A number with three digits that count, and none of its thousands left out."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}" if abs(value) >= 0.01 else "0"


def shorten(name: str, length: int) -> str:
    """A name that is not longer than ``length``, cut at its beginning: what differs is mostly at the end."""
    return name if len(name) <= length else "…" + name[1 - length :]


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
        x = LEFT + PLOT * tick / 1000 / seconds
        yield Line(x, top, x, y, GRID)
        yield Text(x, y + 14, f"{tick:g}", "middle", 11, MUTED)
    yield Text(LEFT - 8, y + 14, "ms", "end", 11, MUTED)


def plate(x: float, y: float, content: str) -> Iterator[Shape]:
    """Text around ``x`` that can be read on any ink."""
    width = 7.0 * len(content) + 6
    yield Rect(x - width / 2, y - 11, width, 15, Ink(PAGE), content)
    yield Text(x, y, content, "middle", 12)
