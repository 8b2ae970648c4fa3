"""``prophet-mx predict`` against the testbed: predicted and measured time per iteration of each cell and method, and the median
error.

    python -m benchmarks.predictions short
    python -m benchmarks.predictions short --costs benchmarks/results/simulator/metadata.json

Reads published results, by name, or what ``benchmarks.run`` wrote, and predicts every method in a cell that has a model, from the cell's
profile and its measured goodput.
Without --costs messages cost nothing, as in ``prophet-mx predict``. With a file of costs, rows of the cells that these were
fitted on are marked and not counted. ``benchmarks.validate_simulator`` makes such a file.

Exit code 1 if the median error is 10% or more, or nothing was predicted; 2 if a file cannot be used.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Optional, Sequence

from prophet_mx.errors import ProphetError
from prophet_mx.simulation.predict import COSTS

from .comparison.results import source
from .validate_simulator import LIMIT, Check, check, read, read_costs, summary


def table(checks: Sequence[Check]) -> str:
    """A line per row."""
    width = max(len(c.cell) for c in checks)
    lines = [f"{'cell':{width}}  {'method':14} measured, ms  predicted, ms    error"]
    lines += [
        f"{c.cell:{width}}  {c.method:14} {c.measured_ms:12.1f}  {c.simulated_ms:13.1f}  {c.error:+7.1%}" + (" fitted" if c.fitted else "")
        for c in checks
    ]
    return "\n".join(lines)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; see the top of this file. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.predictions", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=source, metavar="RUN", help="published results' names, or CSV files of benchmarks.run")
    parser.add_argument("--costs", type=Path, metavar="FILE", help="JSON file of what messages cost (default: nothing)")
    options = parser.parse_args(arguments)
    try:
        costs, fitted = dict(COSTS), []
        if options.costs:
            costs, fitted = read_costs(options.costs)
        checks = check(read(options.runs), costs, fitted)
    except (ProphetError, OSError, KeyError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if checks:
        print(table(checks))
        print(summary(checks))
    errors = [abs(c.error) for c in checks if not c.fitted]
    return int(not errors or statistics.median(errors) >= LIMIT)


if __name__ == "__main__":
    sys.exit(main())
