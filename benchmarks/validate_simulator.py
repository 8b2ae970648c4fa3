"""The simulator against the testbed: simulated and measured time per iteration of every run that the simulator can model.

    python -m benchmarks.validate_simulator benchmarks/results/quick.csv benchmarks/results/simulator-runs.csv --fit 1
    python -m benchmarks.validate_simulator benchmarks/results/quick.csv benchmarks/results/simulator-runs.csv

Reads what ``benchmarks.run`` wrote. A row is simulated with its own cell and measured goodput and compared with the median of the
undisturbed iterations, if there were any. Stock MXNet's push+pull and P3 have no model and are left out.

What messages cost the processors of this machine is no property of the scheduler, and is fitted: ``--fit N`` takes the first N
cells, tries the values of GRID one parameter after the other, twice, for the least mean error, and writes the costs to a JSON
file, with the cells they come from. All other rows are predictions, and the median error is reported for them alone as well.
The fit absorbs whatever else the machine did in those runs; a cost at the edge of GRID need not be the true one.

Writes simulator.csv and simulator.md. Exit code 1 if the median error of the predictions is 10% or more, or nothing was left
to predict.
"""

import argparse
import csv
import json
import shlex
import statistics
import sys
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence

from prophet_mx.cli.arguments import count
from prophet_mx.errors import ProphetError
from prophet_mx.planning.placement import BIGARRAY_BOUND, BIGARRAY_VARIABLE
from prophet_mx.simulation.predict import predicted_seconds

from .comparison.cells import Cell
from .comparison.rows import machine
from .run import RESULTS

POLICY_OF = {
    "pushpull": "plain",
    "fifo": "fifo",
    "priority": "priority",
    "prophet": "prophet",
    "credit": "credit",
    "prophet-icpp21": "prophet-icpp21",
}
LIMIT = 0.10  # of the median error
COSTS_FILE = RESULTS / "simulator_costs.json"

# What the fit tries, in the fields of prophet_mx.simulation.cluster.Cluster (seconds, seconds/byte).
GRID = {
    "message_seconds": (0.0, 2e-5, 5e-5, 1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3, 3.2e-3),
    "server_message_seconds": (0.0, 2e-5, 5e-5, 1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3, 3.2e-3),
    "server_byte_seconds": (0.0, 1e-10, 2e-10, 5e-10, 1e-9, 2e-9, 4e-9),
    "rtt": (0.0, 2e-4, 5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2),
}
ROUNDS = 2


class Measured(NamedTuple):
    """One row of a comparison: what ran, the goodput of a link (bytes/s), and the median time (seconds)."""

    cell: Cell
    method: str
    goodput: float
    seconds: float


class Check(NamedTuple):
    """A row of the result. Times in ms; error = simulated / measured - 1."""

    cell: str
    method: str
    measured_ms: float
    simulated_ms: float
    error: float
    fitted: bool  # the costs were fitted to this row


def read(paths: Sequence[Path]) -> List[Measured]:
    """The rows of the CSV files that can be simulated. Rows of the same cell and method are runs of their own."""
    rows = []
    for path in paths:
        with open(path, newline="") as file:
            rows += [
                Measured(
                    Cell.parse(row["cell"]),
                    row["method"],
                    float(row["goodput_gbit"]) * 1e9 / 8,
                    float(row.get("undisturbed_ms") or row["time_ms"]) / 1e3,
                )
                for row in csv.DictReader(file)
                if row["method"] in POLICY_OF
            ]
    return rows


def predict(cell: Cell, method: str, goodput: float, costs: Dict[str, float]) -> float:
    """Simulated seconds per iteration of a method in a cell whose links carry ``goodput`` bytes/s."""
    load = cell.load(goodput)
    bigarray = int(load.env.get(BIGARRAY_VARIABLE, BIGARRAY_BOUND))
    return predicted_seconds(load.profile, goodput, cell.workers, cell.servers, POLICY_OF[method], costs=costs, bigarray=bigarray)


def fit(rows: Sequence[Measured]) -> Dict[str, float]:
    """The costs of GRID with the least mean error over ``rows``, found one parameter after the other."""
    costs = dict.fromkeys(GRID, 0.0)

    def mean_error(tried: Dict[str, float]) -> float:
        return statistics.fmean(abs(predict(row.cell, row.method, row.goodput, tried) / row.seconds - 1) for row in rows)

    best = mean_error(costs)
    for _ in range(ROUNDS):
        for name, values in GRID.items():
            for value in values:
                if value == costs[name]:
                    continue
                error = mean_error({**costs, name: value})
                if error < best:
                    best, costs = error, {**costs, name: value}
            print(f"fit: {name} = {costs[name]:g}, mean error {best:.2%}", flush=True)
    return costs


def check(rows: Sequence[Measured], costs: Dict[str, float], fitted: Sequence[str]) -> List[Check]:
    """Simulate every row with ``costs``; ``fitted`` names the cells whose rows the costs come from."""
    checks = []
    for row in rows:
        simulated = predict(row.cell, row.method, row.goodput, costs)
        checks.append(
            Check(
                str(row.cell),
                row.method,
                round(row.seconds * 1e3, 1),
                round(simulated * 1e3, 1),
                round(simulated / row.seconds - 1, 4),
                str(row.cell) in fitted,
            )
        )
    return checks


def summary(checks: Sequence[Check]) -> str:
    """Median and largest error, of all rows and of those that were predicted."""
    lines = []
    for name, part in (
        ("predicted", [c for c in checks if not c.fitted]),
        ("fitted", [c for c in checks if c.fitted]),
        ("all", list(checks)),
    ):
        if part:
            errors = [abs(c.error) for c in part]
            lines.append(
                f"{name}: {len(part)} rows of {len({c.cell for c in part})} cells, median error "
                f"{statistics.median(errors):.1%}, largest {max(errors):.1%}"
            )
    return "\n".join(lines)


def write(checks: Sequence[Check], costs: Dict[str, float], folder: Path, command: str) -> List[Path]:
    """Write simulator.csv and simulator.md in ``folder`` and return their paths."""
    table, text = folder / "simulator.csv", folder / "simulator.md"
    with open(table, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Check._fields)
        writer.writerows(checks)
    body = "".join(
        f"| {c.cell} | {c.method} | {c.measured_ms:.0f} | {c.simulated_ms:.0f} | {c.error:+.1%} | {'yes' if c.fitted else ''} |\n"
        for c in checks
    )
    text.write_text(
        f"{machine()}\n\n`{command}`\n\nCosts: {', '.join(f'{k} {v:g}' for k, v in costs.items())}\n\n"
        + "\n".join("- " + line for line in summary(checks).splitlines())
        + "\n\n| cell | method | measured, ms | simulated, ms | error | fitted |\n|---|---|---:|---:|---:|---|\n"
        + body
    )
    return [table, text]


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; see the top of this file. Returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.validate_simulator", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="CSV", help="results of benchmarks.run")
    parser.add_argument("--fit", type=count, metavar="N", help="fit the costs on the first N cells and write them")
    parser.add_argument("--costs", type=Path, default=COSTS_FILE, help="file of the costs (default %(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the tables (default %(default)s)")
    options = parser.parse_args(arguments)
    try:
        rows = read(options.runs)
        if options.fit:
            cells = list(dict.fromkeys(str(row.cell) for row in rows))[: options.fit]
            costs = fit([row for row in rows if str(row.cell) in cells])
            options.costs.write_text(json.dumps({"costs": costs, "cells": cells, "machine": machine()}, indent=1) + "\n")
        known = json.loads(options.costs.read_text())
        checks = check(rows, known["costs"], known["cells"])
    except (ProphetError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(summary(checks))
    command = shlex.join(["python", "-m", "benchmarks.validate_simulator"] + [str(a) for a in arguments])
    for path in write(checks, known["costs"], options.results, command):
        print(f"written: {path}")
    predicted = [abs(c.error) for c in checks if not c.fitted]
    return int(not predicted or statistics.median(predicted) >= LIMIT)


if __name__ == "__main__":
    sys.exit(main())
