"""Prints a result as one table, a column per cell: the one in the README.

python -m benchmarks.report benchmarks/results/quick.csv
"""

import csv
import sys
from pathlib import Path


def compact(path: Path) -> str:
    """The result in a CSV file as one Markdown table: a row per method, and per cell its median time and time / bound."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    cells = list(dict.fromkeys(row["cell"] for row in rows))
    found = {(row["cell"], row["method"]): row for row in rows}
    lines = ["| ms per iteration (time / bound) | " + " | ".join(cells), "|---|" + "---:|" * len(cells)]
    lines[0] += " |"
    bounds = [next(row["bound_ms"] for row in rows if row["cell"] == cell) for cell in cells]
    lines.append("| lower bound | " + " | ".join(f"{float(bound):.0f}" for bound in bounds) + " |")
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = [found.get((cell, method)) for cell in cells]
        lines.append(
            f"| {method} | "
            + " | ".join(f"{float(row['time_ms']):.0f} ({float(row['time_over_bound']):.2f})" if row else "" for row in mine)
            + " |"
        )
    return "\n".join(lines) + "\n\n" + rows[0]["machine"] + "\n"


if __name__ == "__main__":
    print(compact(Path(sys.argv[1])))
