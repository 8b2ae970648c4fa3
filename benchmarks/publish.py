"""Puts the numbers of benchmarks/results into README.md and docs/.

    python -m benchmarks.publish            writes what stands between the marks anew
    python -m benchmarks.publish --check    says where it differs; exit code 1 if it does anywhere

A place begins with a line ``<!-- result: QUESTION VIEW ... -->`` and ends with a line ``<!-- end of result -->``. The views are:

compact  a comparison as one table: a row per cell, a column per method
claims   what the comparison says of the method that the others are compared with, in sentences
gains    a table for readers who want to know how much faster a job gets
words    the same in a few sentences
costs    what each method takes of processor and memory, and how long it takes to start
table    the whole table of the result, but for what stands above it
errors   of the simulator: how far it is off in the cells that it predicts
beside   MXNet and PyTorch in one table: the cells of a question that the question pytorch has as well

Below them stands what the result is of. What has not been measured says so.
"""

import argparse
import re
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

from prophet_mx.errors import ConfigError, ProphetError, not_allowed

from . import collectives, devices, run, training
from .comparison import gains
from .comparison.cells import STEPS, Cell, family, title
from .comparison.metadata import ROOT, made
from .comparison.results import Result, comparison_table, load
from .comparison.rows import JobRow
from .comparison.summaries import LEFT_OUT, CellSummary, summarise
from .comparison.tables import claims, compact, scaled
from .questions import QUESTIONS, Question

PLACE = re.compile(r"^<!-- result: (?P<what>[a-z0-9 -]+?) -->\n(?P<text>.*?)^<!-- end of result -->$", re.MULTILINE | re.DOTALL)
COMPARISONS = {"run": run.parser, "collectives": collectives.parser, "training": training.parser, "devices": devices.parser}
CELLS: Dict[str, Callable[[str], Any]] = {"run": Cell.parse, "training": Cell.parse, "devices": devices.DeviceCell.parse}
ROUNDS: int = run.parser().get_default("repeats")  # of jobs, unless a question asks for more; fewer are said beside the numbers


class Difference(NamedTuple):
    """A place whose text is not that of the result."""

    page: str
    what: str
    is_there: str
    should_be: str

    def __str__(self) -> str:
        """The first lines that differ."""
        old, new = self.is_there.splitlines(), self.should_be.splitlines()
        for place in range(max(len(old), len(new))):
            pair = [lines[place] if place < len(lines) else "" for lines in (old, new)]
            if pair[0] != pair[1]:
                return f"{self.page}: {self.what}: is\n    {pair[0]}\nand should be\n    {pair[1]}"
        return f"{self.page}: {self.what}: differs"


def asked(question: Question, about: Mapping[str, Any]) -> Dict[str, Any]:
    """The metadata of a comparison, with the labels, methods and cells that its question has now: what is left out is then shown. Of a
    result of an older question only the labels change."""
    tune = getattr(_options_of(question), "tune", None)
    if older(question, about):
        return {**about, "labels": question.labels, "cells": [], "tune": tune}
    return {**about, "labels": question.labels, "cells": _cells_of(question), "methods": _options_of(question).methods, "tune": tune}


def _options_of(question: Question) -> argparse.Namespace:
    return COMPARISONS[question.module]().parse_args(question.arguments)


def _cells_of(question: Question) -> List[str]:
    options = _options_of(question)
    kind = getattr(options, "kinds", [""])[0]
    parse = (lambda text: collectives.RingCell.parse(text, kind)) if kind else CELLS[question.module]
    return [str(parse(text)) for text in options.cell]


def older(question: Question, about: Mapping[str, Any]) -> bool:
    """Whether a result is of an older question: it has none of the cells that are asked for now."""
    return question.module in COMPARISONS and not set(_cells_of(question)) & set(about["cells"])


def rows_of(question: Question, result: Result) -> List[JobRow]:
    """The jobs of the cells and methods that are asked for now; of an older question those of the models that are asked for now."""
    if older(question, result.about):
        models = {cell.split(",")[0] for cell in _cells_of(question)}
        return [row for row in result.rows if row.cell.split(",")[0] in models]
    cells, methods, best = _cells_of(question), _options_of(question).methods, result.about["best"]
    return [row for row in result.rows if row.cell in cells and row.method in (*methods, *best.get(row.cell, ()))]


def rendered(what: str, page: str, results: Path) -> str:
    """The text of a place on a page. Raises ConfigError for a question or view that there is not, BelowBoundError."""
    name, *views = what.split()
    question = QUESTIONS.get(name)
    if question is None or not views or not set(views) <= set(VIEWS):
        raise ConfigError(not_allowed(f"{page}: {what!r}", f"a question and one of {', '.join(VIEWS)} or several"))
    result = load(name, results)
    if result is None:
        return f"*Not measured with this version: `python -m benchmarks.questions {name} --publish`.*\n"
    parts = [VIEWS[view](question, result, results) for view in views]
    return "\n\n".join([*parts, _origin(question, result, page)]) + "\n"


def _of_rows(view: Callable[[Sequence[JobRow], Mapping[str, Any]], str]) -> Callable[[Question, Result, Path], str]:
    return lambda question, result, results: view(rows_of(question, result), asked(question, result.about))


def _table(question: Question, result: Result, results: Path) -> str:
    return result.table.split("\n\n", 2)[2].rstrip()


def _errors(question: Question, result: Result, results: Path) -> str:
    found = re.findall(r"^Costs ([a-z ]+):\n\n- predicted: (.+)$", result.table, re.MULTILINE)
    return "\n".join(f"- Costs {name}: {what}." for name, what in found)


def _beside(question: Question, result: Result, results: Path) -> str:
    """``result`` is MXNet's; of its cells those that PyTorch's result has as well: with as many servers as workers."""
    other = load("pytorch", results)
    their_rows = rows_of(QUESTIONS["pytorch"], other) if other else []
    theirs = {_name(cell): cell for cell in summarise(their_rows, ())}
    lines = [
        "| ms per iteration (time / bound) | plain `dist_sync` | P3 | prophet_mx, MXNet | DDP | DDP, best buckets | prophet_mx, PyTorch |",
        "|---|" + "---:|" * 6,
    ]
    mine = [row for row in rows_of(question, result) if Cell.parse(row.cell).workers == Cell.parse(row.cell).servers]
    used = []
    for cell in summarise(mine, ()):
        twin = theirs.get(_name(cell))
        if twin is None:
            continue
        used += [row for row in their_rows if row.cell == twin.cell]
        pytorch = [_time(twin, "ddp"), _time(twin, _best_ddp(twin)), _time(twin, "scheduled")]
        p3 = next((name for name in cell.methods if family(name).startswith("p3")), "p3")
        lines.append(f"| {_name(cell)} | " + " | ".join([_time(cell, name) for name in ("pushpull", p3, "prophet")] + pytorch) + " |")
    if not used or other is None:
        return f"*{LEFT_OUT[0].upper()}{LEFT_OUT[1:]} in the same cells yet.*"
    note = (
        "A link carries the same bytes in both: there are as many servers as workers. The servers stand on machines of their own, which "
        "all-reduce does not need. DistributedDataParallel's best bucket size is the best of these jobs."
    )
    return "\n\n".join(["\n".join(lines), scaled([*mine, *used]), note, _origin(QUESTIONS["pytorch"], other, "docs")])


def _name(cell: CellSummary) -> str:
    """What a cell has in both frameworks: the model, the workers or ranks, rho, and the time of computing."""
    text = cell.cell.replace(STEPS, "").replace("ranks=", "workers=")
    parsed = Cell.parse(text)
    return title(
        str(Cell(parsed.profile, parsed.workers, rho=parsed.rho, compute=parsed.compute, slow=parsed.slow, jitter=parsed.jitter))
    ).replace(", 2 workers, 1 server", "")


def _best_ddp(cell: CellSummary) -> str:
    found = [summary for summary in cell.methods.values() if family(summary.method) == "ddp" and summary.jobs]
    return min(found, key=lambda summary: summary.time.median).method if found else "ddp"


def _time(cell: CellSummary, method: str) -> str:
    summary = cell.methods.get(method)
    if summary is None or not summary.jobs:
        return LEFT_OUT if summary is None else summary.note
    return f"{summary.time.median:.0f}" + (f" ({summary.ratio:.2f})" if summary.ratio else "")


VIEWS: Dict[str, Callable[[Question, Result, Path], str]] = {
    "compact": _of_rows(compact),
    "claims": _of_rows(claims),
    "gains": _of_rows(gains.table),
    "words": _of_rows(gains.words),
    "costs": _of_rows(gains.costs),
    "table": _table,
    "errors": _errors,
    "beside": _beside,
}


def _origin(question: Question, result: Result, page: str) -> str:
    """What the numbers are of."""
    file = f"benchmarks/results/{question.name}/table.md"
    where = f"[{question.name}]({file})" if page == "README.md" else f"`{file}`"
    repeats = result.about.get("repeats", ROUNDS)
    old = (
        " This result is of an older question: `make results` now measures other cells or methods." if older(question, result.about) else ""
    )
    few = f" Only {repeats} round{'s' * (repeats > 1)} of jobs." if repeats < ROUNDS else ""
    return f"{where}, by `make bench-{question.name}`: {made(result.about)}{old}{few}"


def pages(root: Path = ROOT) -> List[Path]:
    """What may have places."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def differences(root: Path = ROOT) -> List[Difference]:
    """The places of all pages in a checkout that are not what its benchmarks/results say, and tables there that are not of their data."""
    results = root / "benchmarks" / "results"
    found = []
    for path in pages(root):
        page = str(path.relative_to(root))
        for place in PLACE.finditer(path.read_text(encoding="utf-8")):
            should_be = rendered(place["what"], page, results)
            if place["text"] != should_be:
                found.append(Difference(page, place["what"], place["text"], should_be))
    for question in QUESTIONS.values():
        result = load(question.name, results) if question.module in COMPARISONS else None
        if result is not None:
            should_be = comparison_table(result.rows, result.about).rstrip()
            is_there = _table(question, result, results)
            if is_there != should_be:
                found.append(Difference(str(result.files.table.relative_to(root)), question.name, is_there, should_be))
    return found


def fill(root: Path = ROOT) -> List[str]:
    """Write all places anew; the pages that changed."""
    changed = []
    for path in pages(root):
        page, old = str(path.relative_to(root)), path.read_text(encoding="utf-8")
        new = PLACE.sub(
            lambda place: (
                f"<!-- result: {place['what']} -->\n{rendered(place['what'], page, root / 'benchmarks' / 'results')}<!-- end of result -->"
            ),
            old,
        )
        if new != old:
            path.write_text(new, encoding="utf-8")
            changed.append(page)
    return changed


def with_notes(text: str, notes: Mapping[str, str]) -> str:
    """A page's text with a note, by question, at each place whose result has one: for pages that are generated."""

    def noted(place: "re.Match[str]") -> str:
        note = notes.get(place["what"].split()[0], "")
        return place[0] + (f"\n\n**{note}**" if note else "")

    return PLACE.sub(noted, text)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; see the top of this file. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.publish", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, but name the pages that differ")
    options = parser.parse_args(arguments)
    try:
        if not options.check:
            print("\n".join(f"written: {page}" for page in fill()) or "nothing to change")
        found = differences()
    except ProphetError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for difference in found:
        print(difference)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
