"""The page of ``prophet-mx report``: one HTML text without anything to load. What it says is here and in ``templates/report.html``."""

import os
from typing import TYPE_CHECKING, List, NamedTuple, Optional, Sequence, Tuple

from ..errors import MissingPackageError
from ..quantities import format_rate
from . import report_charts as charts
from .report_charts import COLOURS, LINES, Chart
from .trace_figures import PARTS, Figures
from .trace_format import STAGES

if TYPE_CHECKING:
    import jinja2

PART_WORDS = {
    "backward": "backward: gradients are made and sent",
    "stalled": "stalled: all waits for the first layer",
    "arriving": "arriving: forward goes as far as values have come",
    "compute": "compute: all values are there",
}
STAGE_WORDS = {
    "wait": "waits to be sent",
    "wire": "on the wire",
    "answer": "until all workers have sent it and the server has answered",
    "unpack": "until it is in the caller's array",
}


def page(all_figures: Sequence[Figures]) -> str:
    """The HTML of one trace, or of two in comparison.

    Raises
    ------
    MissingPackageError
        the package that fills in the template is not installed.
    """
    template = _template()
    names = trace_names(all_figures)
    longest = max(figures.median.seconds for figures in all_figures)
    return template.render(
        names=names,
        lines=list(zip(LINES, names)),
        rows=table(all_figures),
        traces=[
            _Shown(
                name,
                figures,
                charts.utilisation(figures, longest, colour),
                charts.step_pattern(figures, longest, colour) if figures.steps else None,
                charts.gantt(figures, longest),
            )
            for name, figures, colour in zip(names, all_figures, LINES)
        ],
        parts=[(COLOURS[part], PART_WORDS[part]) for part in PARTS],
        stages=[(COLOURS[stage], STAGE_WORDS[stage]) for stage in STAGES],
        first_parameter=all_figures[0].first_parameter,
        composition=charts.composition(all_figures, names),
        first_layer=charts.first_layer(all_figures, names),
        times=charts.curves([_times(figures) for figures in all_figures], 160, "ms", "iteration times"),
    )


class _Shown(NamedTuple):
    """A trace on the page: its charts that are not shared with the other one. ``steps`` is None where the profile was not learned."""

    name: str
    figures: Figures
    utilisation: Chart
    steps: Optional[Chart]
    gantt: Chart


def _template() -> "jinja2.Template":
    try:
        import jinja2
    except ImportError:
        raise MissingPackageError("the report needs the package jinja2; install it with \"pip install 'prophet_mx[report]'\"") from None
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("report.html")


def trace_names(all_figures: Sequence[Figures]) -> List[str]:
    """Short names that tell the traces apart."""
    names = [os.path.basename(figures.trace.path) for figures in all_figures]
    return [figures.trace.path for figures in all_figures] if len(set(names)) < len(names) else names


def rows(figures: Figures) -> List[Tuple[str, float, str]]:
    """One trace's part of the table: what, a number, how it is shown."""
    sent = figures.middle([iteration.bytes for iteration in figures.iterations])
    return [
        _row("iteration", 1000 * figures.seconds, "ms"),
        _row("stalled until the first layer is there", 1000 * figures.part("stalled"), "ms"),
        _row("first layer: ready until its values are there", 1000 * figures.first_wait("total"), "ms"),
        _row("first layer: in front of it when it became ready", figures.middle([i.ahead for i in figures.iterations]) / 1e3, "KB"),
        _row("links busy", 100 * figures.utilisation, "%"),
        _row("nothing to send: the network waits for gradients", 1000 * figures.middle([i.idle for i in figures.iterations]), "ms"),
        _row("sent per iteration", sent / 1e6, "MB"),
        ("measured rate of the links", figures.rate, format_rate(figures.rate)),
    ]


def _row(what: str, number: float, unit: str) -> Tuple[str, float, str]:
    return what, number, f"{number:.4g} {unit}"


def table(all_figures: Sequence[Figures]) -> List[Tuple[str, List[str], str]]:
    """The page's table: what, how it is shown for each trace, and by how much a second trace differs."""
    lines = []
    for row in zip(*map(rows, all_figures)):
        numbers = [number for _, number, _ in row]
        change = f"{100 * (numbers[1] / numbers[0] - 1):+.1f}%" if len(numbers) == 2 and numbers[0] else ""
        lines.append((row[0][0], [shown for _, _, shown in row], change))
    return lines


def _times(figures: Figures) -> List[Tuple[float, float]]:
    return [(number, 1000 * (end - begin)) for number, (begin, end) in sorted(figures.trace.iterations.items())]
