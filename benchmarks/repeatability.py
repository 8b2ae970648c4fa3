"""Do repeats of a comparison agree? Results of ``benchmarks.run`` with the same cells and methods, median by median.

    python -m benchmarks.repeatability benchmarks/results/quick.csv benchmarks/results/quick-2.csv

Writes repeatability.md beside the first. Exit code 1 if a cell and method's medians differ by more than 5%.
"""

import argparse
import csv
import shlex
import sys
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from .comparison.rows import machine

LIMIT = 0.05


def medians(path: Path) -> Dict[Tuple[str, str], float]:
    """(cell, method) -> median time in ms of a result."""
    with open(path, newline="") as file:
        return {(row["cell"], row["method"]): float(row["time_ms"]) for row in csv.DictReader(file)}


def spread(values: Sequence[float]) -> float:
    """Largest over smallest, minus 1."""
    return max(values) / min(values) - 1


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; see the top of this file. Returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.repeatability", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="CSV", help="two or more results with the same cells and methods")
    options = parser.parse_args(arguments)
    found = [medians(path) for path in options.runs]
    common = [key for key in found[0] if all(key in run for run in found)]
    if len(found) < 2 or not common:
        parser.error("nothing to compare: name two or more results that share cells and methods")
    rows: List[str] = []
    worst = 0.0
    for key in common:
        values = [run[key] for run in found]
        worst = max(worst, spread(values))
        rows.append(
            "| {} | {} | {} | {:.1%} |{}\n".format(
                *key, " | ".join(f"{v:.0f}" for v in values), spread(values), " **over 5%**" if spread(values) > LIMIT else ""
            )
        )
    names = " | ".join(f"{path.stem}, ms" for path in options.runs)
    text = (
        f"{machine()}\n\n`{shlex.join(['python', '-m', 'benchmarks.repeatability'] + arguments)}`\n\n"
        f"Largest difference of two medians: {worst:.1%}\n\n| cell | method | {names} | difference |\n|---|---|"
        + "---:|" * (len(found) + 1)
        + "\n"
        + "".join(rows)
    )
    print(text)
    (options.runs[0].parent / "repeatability.md").write_text(text)
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
