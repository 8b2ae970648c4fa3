"""Do two runs of a comparison agree? Their medians beside each other, and whether these differ by more than jobs do.

    python -m benchmarks.repeatability headline benchmarks/scratch/headline-again.csv

A run is the name of a published result or a CSV file. Two medians agree if the interval of their ratio, by a bootstrap over the jobs of
both, has 1 in it. Exit code 1 if fewer than 95% of the rows agree, 2 if there is nothing to compare.
"""

import argparse
import statistics
import sys
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from .comparison.intervals import Interval, of_median, of_ratio
from .comparison.metadata import describe
from .comparison.names import title
from .comparison.results import add_output_options, source, write_everywhere
from .comparison.rows import JobRow, read
from .comparison.tables import scaled

LEAST_AGREEING = 0.95


class Row(NamedTuple):
    """A method in a cell, in both runs; ``ratio``: the second median over the first."""

    cell: str
    kind: str
    method: str
    first: Interval  # ms
    second: Interval
    ratio: Interval

    @property
    def agrees(self) -> bool:
        return 1 in self.ratio


def times(rows: Sequence[JobRow]) -> Dict[Tuple[str, str, str], List[float]]:
    """(cell, kind, method) -> ms of each job that counts."""
    found: Dict[Tuple[str, str, str], List[float]] = {}
    for row in rows:
        if not row.aside and row.time_ms is not None:
            found.setdefault((row.cell, row.kind, row.method), []).append(row.time_ms)
    return found


def compared(first: Sequence[JobRow], second: Sequence[JobRow]) -> List[Row]:
    """The rows that both runs have."""
    ours, theirs = times(first), times(second)
    return [
        Row(*key, of_median(ours[key]), of_median(theirs[key]), of_ratio(theirs[key], ours[key])) for key in sorted(ours) if key in theirs
    ]


def markdown(rows: Sequence[Row]) -> str:
    """What the rows say, and a table of them."""
    agree = sum(row.agrees for row in rows)
    differences = [abs(row.ratio.median - 1) for row in rows]
    about = (
        f"{agree} of {len(rows)} rows agree ({agree / len(rows):.0%}). The medians differ by {statistics.median(differences):.1%} in the "
        f"median, {max(differences):.1%} at most."
    )
    lines = ["| cell | method | first, ms (95%) | second, ms (95%) | second / first (95%) | |", "|---|---|---:|---:|---:|---|"]
    for row in rows:
        numbers = " | ".join((row.first.text(1), row.second.text(1), row.ratio.text(3)))
        lines.append(f"| {title(row.cell, row.kind)} | {row.method} | {numbers} | {'' if row.agrees else '**differs**'} |")
    return about + "\n\n" + "\n".join(lines) + "\n"


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; see the top of this file. Returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.repeatability", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs=2, type=source, metavar="RUN", help="a published result's name, or a CSV file")
    add_output_options(parser)
    options = parser.parse_args(arguments)
    try:
        first, second = map(read, options.runs)
    except OSError as error:
        parser.error(str(error))
    rows = compared(first, second)
    if not rows:
        parser.error("nothing to compare: the runs share no cell and method")
    table = f"{scaled(first)}\n\n{markdown(rows)}"
    print(table)
    flat = [(row.cell, row.kind, row.method, *row.first, *row.second, *row.ratio, row.agrees) for row in rows]
    names = [f"{what}{part}" for what in ("first", "second", "ratio") for part in ("", "_low", "_high")]
    write_everywhere(
        options, "repeatability", ("cell", "kind", "method", *names, "agrees"), flat, table, describe("repeatability", arguments)
    )
    return int(sum(row.agrees for row in rows) < LEAST_AGREEING * len(rows))


if __name__ == "__main__":
    sys.exit(main())
