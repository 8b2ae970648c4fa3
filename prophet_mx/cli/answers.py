"""What ``predict`` and ``simulate`` answer: the rows of a table, which both print, write to a CSV file, and put into JSON."""

import csv
import io
import sys
from dataclasses import dataclass
from typing import Any, Dict, Sequence, Tuple

from ..quantities import format_rate
from ..simulation.simulator import Result

HEADINGS = ("policy", "bandwidth", "workers", "servers", "ms", "bound", "ratio", "speedup")
WIDTHS = (14, 12, 7, 7, 10, 10, 7, 7)


@dataclass(frozen=True)
class Row:
    """One line of the table: a policy on a cluster."""

    result: Result
    speedup: float

    @classmethod
    def of(cls, result: Result, plain: Result) -> "Row":
        """A policy's result, compared with plain dist_sync on the same cluster."""
        return cls(result, plain.seconds / result.seconds if result.seconds else 1.0)

    def values(self) -> Dict[str, Any]:
        """By column of the CSV file; times in seconds, bandwidth in bytes/s."""
        cluster = self.result.cluster
        return {
            "policy": self.result.policy,
            "bandwidth": cluster.bandwidth,
            "workers": cluster.workers,
            "servers": cluster.servers,
            "seconds": self.result.seconds,
            "bound": self.result.bound,
            "ratio": self.result.ratio,
            "speedup": self.speedup,
        }

    def cells(self) -> Tuple[str, ...]:
        """As printed."""
        result = self.result
        return (
            result.policy,
            format_rate(result.cluster.bandwidth),
            str(result.cluster.workers),
            str(result.cluster.servers),
            f"{1e3 * result.seconds:.1f}",
            f"{1e3 * result.bound:.1f}",
            f"{result.ratio:.3f}",
            f"{self.speedup:.2f}",
        )


def line(cells: Sequence[str]) -> str:
    """A line of the table: HEADINGS, or the cells of a row."""
    return " ".join([cells[0].ljust(WIDTHS[0])] + [cell.rjust(width) for cell, width in zip(cells[1:], WIDTHS[1:])])


def write_csv(command: str, path: str, rows: Sequence[Row]) -> int:
    """Write the table to a file. Returns the exit code: 1, after a line that says why, if it cannot be written."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0].values()), lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.values() for row in rows)
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.getvalue())
    except OSError as error:
        print(f"prophet-mx {command}: error: --csv: cannot write {path}: {error.strerror}", file=sys.stderr)
        return 1
    return 0
