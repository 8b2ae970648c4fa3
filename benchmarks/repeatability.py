"""Do several runs of a comparison agree? Their medians beside each other, and whether these differ by more than jobs do.

    python -m benchmarks.repeatability headline headline-second headline-third

A run is the name of a published result or a CSV file. Each run is compared with each other. Two medians agree if the interval of their
ratio, by a bootstrap over the jobs of both, has 1 in it. Exit code 1 if fewer than 95% of all pairs agree, 2 if nothing can be compared.
"""

import argparse
import itertools
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
Key = Tuple[str, str, str]  # cell, kind, method


class Pair(NamedTuple):
    """A method in a cell, in two of the runs, which count from 1; ``ratio``: the median of the later run over that of the earlier one."""

    key: Key
    runs: Tuple[int, int]
    medians: Tuple[Interval, Interval]  # ms
    ratio: Interval

    @property
    def agrees(self) -> bool:
        return 1 in self.ratio

    @property
    def difference(self) -> float:
        return abs(self.ratio.median - 1)


def times(rows: Sequence[JobRow]) -> Dict[Key, List[float]]:
    """The ms of each job that counts."""
    found: Dict[Key, List[float]] = {}
    for row in rows:
        if not row.aside and row.time_ms is not None:
            found.setdefault((row.cell, row.kind, row.method), []).append(row.time_ms)
    return found


def compared(runs: Sequence[Sequence[JobRow]]) -> List[Pair]:
    """Each run with each later one, of what all have."""
    found = [times(rows) for rows in runs]
    common = sorted(set(found[0]).intersection(*found[1:]))
    return [
        Pair(
            key,
            (one + 1, other + 1),
            (of_median(found[one][key]), of_median(found[other][key])),
            of_ratio(found[other][key], found[one][key]),
        )
        for key in common
        for one, other in itertools.combinations(range(len(runs)), 2)
    ]


def markdown(pairs: Sequence[Pair]) -> str:
    """What the pairs say, and a table with a row per cell and method."""
    apart = [pair for pair in pairs if not pair.agrees]
    agree = len(pairs) - len(apart)
    differences = [pair.difference for pair in pairs]
    about = (
        f"{agree} of {len(pairs)} pairs of medians agree ({agree / len(pairs):.0%}). "
        f"They differ by {statistics.median(differences):.1%} in the median, {max(differences):.1%} at most."
    )
    if apart:
        about += "\n\nThose that do not agree, the later median over the earlier one:\n"
    for pair in apart:
        cell, kind, method = pair.key
        about += f"\n- runs {pair.runs[0]} and {pair.runs[1]}: `{method}`, {title(cell, kind)}: {pair.ratio.text(3)}"
    number = max(pair.runs[1] for pair in pairs)
    head = " | ".join(f"run {run}, ms (95%)" for run in range(1, number + 1))
    lines = [f"| cell | method | {head} | furthest apart: ratio (95%) | |", "|---|---|" + "---:|" * (number + 1) + "---|"]
    lines += [_line(list(group)) for _, group in itertools.groupby(pairs, key=lambda pair: pair.key)]
    return about + "\n\n" + "\n".join(lines) + "\n"


def _line(pairs: Sequence[Pair]) -> str:
    """The table's row of all pairs of one method in one cell."""
    cell, kind, method = pairs[0].key
    medians = {run: median for pair in pairs for run, median in zip(pair.runs, pair.medians)}
    shown = " | ".join(medians[run].text(1) for run in sorted(medians))
    furthest = max(pairs, key=lambda pair: pair.difference)
    apart = ", ".join(f"{one} and {other}" for one, other in (pair.runs for pair in pairs if not pair.agrees))
    note = f"**{apart} differ**" if apart else ""
    return f"| {title(cell, kind)} | {method} | {shown} | {furthest.ratio.text(3)} | {note} |"


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; see the top of this file. Returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.repeatability", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=source, metavar="RUN", help="a published result's name, or a CSV file")
    add_output_options(parser)
    options = parser.parse_args(arguments)
    if len(options.runs) < 2:
        parser.error(f"{options.runs[0]} alone is not allowed; allowed: two runs or more")
    try:
        runs = [read(path) for path in options.runs]
    except OSError as error:
        parser.error(str(error))
    pairs = compared(runs)
    if not pairs:
        parser.error("nothing to compare: the runs share no cell and method")
    table = f"{scaled(runs[0])}\n\n{markdown(pairs)}"
    print(table)
    flat = [(*pair.key, *pair.runs, *pair.medians[0], *pair.medians[1], *pair.ratio, pair.agrees) for pair in pairs]
    names = [f"{what}{part}" for what in ("first_ms", "second_ms", "ratio") for part in ("", "_low", "_high")]
    write_everywhere(
        options,
        "repeatability",
        ("cell", "kind", "method", "first", "second", *names, "agrees"),
        flat,
        table,
        describe("repeatability", arguments),
    )
    return int(sum(pair.agrees for pair in pairs) < LEAST_AGREEING * len(pairs))


if __name__ == "__main__":
    sys.exit(main())
