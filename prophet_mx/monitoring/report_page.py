"""The page of ``prophet-mx report``: one HTML text without anything to load."""
import os
from html import escape
from typing import Callable, List, Mapping, Sequence, Tuple

from ..quantities import format_rate
from . import report_charts as charts
from .report_charts import COLOURS, LINES
from .trace_figures import PARTS, Figures

STYLE = """
body { font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; color: #222; background: #fff; margin: 0 auto; padding: 20px 24px 60px;
       max-width: 1060px; }
h1 { font-size: 25px; margin: 0 0 2px; overflow-wrap: anywhere; } h2 { font-size: 19px; margin: 34px 0 4px; }
p { margin: 4px 0 10px; max-width: 860px; color: #444; } svg { display: block; margin: 6px 0; }
svg text { font-family: system-ui, "DejaVu Sans", sans-serif; }
table { border-collapse: collapse; margin: 10px 0; }
th, td { padding: 3px 14px 3px 0; text-align: right; border-bottom: 1px solid #e4e4e4; }
th:first-child, td:first-child { text-align: left; } th { font-weight: 600; color: #555; overflow-wrap: anywhere; }
td { white-space: nowrap; }
.key { font-size: 12.5px; color: #444; } .key span { white-space: nowrap; margin-right: 14px; }
.key i { display: inline-block; width: 11px; height: 11px; margin-right: 5px; } svg rect { shape-rendering: crispEdges; }
.name { font-size: 14px; font-weight: 600; margin: 10px 0 0; } .note { color: #a33; }
"""

PART_WORDS = {"backward": "backward: gradients are made and sent", "stalled": "stalled: all waits for the first layer",
              "arriving": "arriving: forward goes as far as values have come", "compute": "compute: all values are there"}
STAGE_WORDS = {"wait": "waits to be sent", "wire": "on the wire",
               "answer": "until all workers have sent it and the server has answered", "unpack": "until it is in the caller's array"}


def page(all_figures: Sequence[Figures]) -> str:
    """The HTML of one trace, or of two in comparison."""
    names = trace_names(all_figures)
    longest = max(figures.median.seconds for figures in all_figures)
    title = "prophet_mx: " + " and ".join(names)
    body = [f"<h1>{escape(title)}</h1>", _origin(all_figures, names), _table(all_figures, names)]
    body += ["<h2>What an iteration is made of</h2>",
             "<p>From an iteration's first ready gradient to the next one's; medians. What scheduling can shorten is the time stalled: "
             "the gradients are all there, and the next forward waits for its first layer's values.</p>",
             _key(PARTS, PART_WORDS), charts.composition(all_figures, names)]
    body += ["<h2>Wait of the first layer</h2>",
             f"<p>What the values of {escape(all_figures[0].first_parameter)}, needed first by the next forward, wait for; medians.</p>",
             _key(tuple(STAGE_WORDS), STAGE_WORDS), charts.first_layer(all_figures, names)]
    body += ["<h2>Link utilisation</h2>",
             "<p>The share of the time in which the links carried bytes, over the iteration of median length. Drain is sampled: bytes between two samples are spread evenly.</p>"]
    body += _each(all_figures, names, lambda figures, colour: charts.utilisation(figures, longest, colour))
    body += ["<h2>Step pattern</h2>", "<p>When gradients become ready together, after the first of the iteration, and how many bytes they "
             "are; medians.</p>"]
    body += _each(all_figures, names, lambda figures, colour: charts.step_pattern(figures, longest, colour) if figures.steps
                  else "<p>No steps: the profile was not learned yet.</p>")
    body += ["<h2>One iteration</h2>", "<p>The iteration of median length: a row per parameter, most urgent first.</p>",
             _key(tuple(STAGE_WORDS), STAGE_WORDS)]
    body += _each(all_figures, names, lambda figures, colour: charts.gantt(figures, longest))
    body += ["<h2>Iteration time</h2>", "<p>Of all iterations whose beginning was recorded.</p>", _key_lines(names),
             charts.curves([_times(figures) for figures in all_figures], 160, "ms", "iteration times")]
    return (f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style></head>'
            "<body>\n" + "\n".join(body) + "\n</body></html>\n")


def trace_names(all_figures: Sequence[Figures]) -> List[str]:
    """Short names that tell the traces apart."""
    names = [os.path.basename(figures.trace.path) for figures in all_figures]
    return [figures.trace.path for figures in all_figures] if len(set(names)) < len(names) else names


def _each(all_figures: Sequence[Figures], names: Sequence[str], draw: Callable[[Figures, str], str]) -> List[str]:
    """A chart for each trace, under its name if there are two."""
    parts = []
    for figures, name, colour in zip(all_figures, names, LINES):
        if len(all_figures) > 1:
            parts.append(f'<div class="name">{escape(name)}</div>')
        parts.append(draw(figures, colour))
    return parts


def _origin(all_figures: Sequence[Figures], names: Sequence[str]) -> str:
    lines = []
    for figures, name in zip(all_figures, names):
        head, numbers = figures.trace.head, [iteration.number for iteration in figures.iterations]
        lost = f' <span class="note">{figures.trace.lost} events were lost.</span>' if figures.trace.lost else ""
        lines.append(f"<p><b>{escape(name)}</b>: worker {escape(str(head.get('rank')))} of {escape(str(head.get('workers')))}, "
                     f"{escape(str(head.get('servers')))} server(s), policy {escape(str(head.get('policy')))}, "
                     f"started {escape(str(head.get('started')))}. Figures are of {len(numbers)} iteration(s) from {numbers[0]} to "
                     f"{numbers[-1]}, {len(figures.trace.units)} units.{lost}</p>")
    return "\n".join(lines)


def rows(figures: Figures) -> List[Tuple[str, float, str]]:
    """The table's rows: what, a number, how it is shown."""
    sent = figures.middle([iteration.bytes for iteration in figures.iterations])
    return [_row("iteration", 1000 * figures.seconds, "ms"),
            _row("stalled until the first layer is there", 1000 * figures.part("stalled"), "ms"),
            _row("first layer: ready until its values are there", 1000 * figures.first_wait("total"), "ms"),
            _row("links busy", 100 * figures.utilisation, "%"),
            _row("nothing to send: the network waits for gradients", 1000 * figures.middle([i.idle for i in figures.iterations]), "ms"),
            _row("sent per iteration", sent / 1e6, "MB"),
            ("measured rate of the links", figures.rate, format_rate(figures.rate))]


def _row(what: str, number: float, unit: str) -> Tuple[str, float, str]:
    return what, number, f"{number:.4g} {unit}"


def _table(all_figures: Sequence[Figures], names: Sequence[str]) -> str:
    columns = [rows(figures) for figures in all_figures]
    cells = ["<tr><th>median</th>" + "".join(f"<th>{escape(name)}</th>" for name in names)
             + ("<th>difference</th>" if len(columns) == 2 else "") + "</tr>"]
    for row in zip(*columns):
        values = [value for _, value, _ in row]
        change = ""
        if len(values) == 2:
            change = f"<td>{100 * (values[1] / values[0] - 1):+.1f}%</td>" if values[0] else "<td></td>"
        cells.append(f"<tr><td>{row[0][0]}</td>" + "".join(f"<td>{text}</td>" for _, _, text in row) + change + "</tr>")
    return "<table>" + "\n".join(cells) + "</table>"


def _key(names: Sequence[str], words: Mapping[str, str]) -> str:
    entries = [f'<span><i style="background:{COLOURS[name]}"></i>{words[name]}</span> ' for name in names]
    return '<div class="key">' + "".join(entries) + "</div>"


def _key_lines(names: Sequence[str]) -> str:
    return '<div class="key">' + "".join(f'<span><i style="background:{colour}"></i>{escape(name)}</span> '
                                         for name, colour in zip(names, LINES)) + "</div>"


def _times(figures: Figures) -> List[Tuple[float, float]]:
    return [(number, 1000 * (end - begin)) for number, (begin, end) in sorted(figures.trace.iterations.items())]
