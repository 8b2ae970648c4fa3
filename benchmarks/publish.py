"""Puts the numbers of benchmarks/results into README.md and docs/.

    python -m benchmarks.publish            writes what stands between the marks anew
    python -m benchmarks.publish --check    says where it differs; exit code 1 if it does anywhere

A place begins with a line ``<!-- result: QUESTION VIEW ... -->`` and ends with a line ``<!-- end of result -->``. The views are:

compact  a comparison as one table: a row per cell, a column per method
claims   what the comparison says of the method that the others are compared with, in sentences
table    the whole table of the result, but for what stands above it
summary  what stands above the table's first row
beside   MXNet and PyTorch in one table, of the questions frameworks-mxnet and frameworks-pytorch

Below them stands what the result is of. What has not been measured says so.
"""

import argparse
import re
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

from prophet_mx.errors import ConfigError, ProphetError, not_allowed

from . import collectives, run, training
from .comparison.cells import family, title
from .comparison.metadata import ROOT, made
from .comparison.results import Result, comparison_table, load
from .comparison.summaries import CellSummary, summarise
from .comparison.tables import claims, compact, scaled
from .questions import QUESTIONS, Question

PLACE = re.compile(r"^<!-- result: (?P<what>[a-z0-9 -]+?) -->\n(?P<text>.*?)^<!-- end of result -->$", re.MULTILINE | re.DOTALL)
COMPARISONS = {"run": run.parser, "collectives": collectives.parser, "training": training.parser}
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
    """The metadata of a comparison, with the labels, methods and cells that its question has now: what is left out is then shown."""
    options = COMPARISONS[question.module]().parse_args(question.arguments)
    kind = getattr(options, "kinds", [""])[0]
    cells = [str(collectives.RingCell.parse(text, kind) if kind else run.Cell.parse(text)) for text in options.cell]
    both = {"methods": options.methods, "cells": cells}
    return {
        **about,
        "labels": question.labels,
        **{key: [*about[key], *(x for x in new if x not in about[key])] for key, new in both.items()},
    }


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


def _compact(question: Question, result: Result, results: Path) -> str:
    return compact(result.rows, asked(question, result.about))


def _claims(question: Question, result: Result, results: Path) -> str:
    return claims(result.rows, asked(question, result.about))


def _table(question: Question, result: Result, results: Path) -> str:
    return result.table.split("\n\n", 2)[2].rstrip()


def _beside(question: Question, result: Result, results: Path) -> str:
    """``result`` is MXNet's; PyTorch's has the same cells in the same order."""
    other = load("frameworks-pytorch", results)
    ours = summarise(result.rows, ())
    their_rows = other.rows if other else []
    theirs = summarise(their_rows, ())
    lines = [
        "| ms per iteration (time / bound) | plain `dist_sync` | P3 | prophet_mx, MXNet | DDP | DDP, best buckets | prophet_mx, PyTorch |",
        "|---|" + "---:|" * 6,
    ]
    for cell in ours:
        twin = next((each for each in theirs if title(each.cell).replace(", gradients in steps", "") == _name(cell)), None)
        pytorch = ["not measured"] * 3 if twin is None else [_time(twin, "ddp"), _time(twin, _best_ddp(twin)), _time(twin, "scheduled")]
        lines.append(f"| {_name(cell)} | " + " | ".join([_time(cell, name) for name in ("pushpull", "p3", "prophet")] + pytorch) + " |")
    note = (
        "A link carries the same bytes in both: there are as many servers as workers. The servers stand on machines of their own, which "
        "all-reduce does not need. DistributedDataParallel's best bucket size is the best of these jobs."
    )
    paragraphs = ["\n".join(lines), scaled([*result.rows, *their_rows]), note]
    if other:
        paragraphs.append(_origin(QUESTIONS["frameworks-pytorch"], other, "docs"))
    return "\n\n".join(paragraphs)


def _name(cell: CellSummary) -> str:
    return title(cell.cell).replace(", 2 workers, 2 servers", "")


def _best_ddp(cell: CellSummary) -> str:
    found = [summary for summary in cell.methods.values() if family(summary.method) == "ddp" and summary.jobs]
    return min(found, key=lambda summary: summary.time.median).method if found else "ddp"


def _time(cell: CellSummary, method: str) -> str:
    summary = cell.methods.get(method)
    if summary is None or not summary.jobs:
        return "not measured" if summary is None else summary.note
    return f"{summary.time.median:.0f}" + (f" ({summary.ratio:.2f})" if summary.ratio else "")


VIEWS: Dict[str, Callable[[Question, Result, Path], str]] = {
    "compact": _compact,
    "claims": _claims,
    "table": _table,
    "summary": lambda question, result, results: _table(question, result, results).split("\n|")[0].rstrip(),
    "beside": _beside,
}


def _origin(question: Question, result: Result, page: str) -> str:
    """What the numbers are of."""
    file = f"benchmarks/results/{question.name}/table.md"
    where = f"[{question.name}]({file})" if page == "README.md" else f"`{file}`"
    repeats = result.about.get("repeats", ROUNDS)
    few = f" Only {repeats} round{'s' * (repeats > 1)} of jobs." if repeats < ROUNDS else ""
    return f"{where}, by `make bench-{question.name}`: {made(result.about)}{few}"


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
