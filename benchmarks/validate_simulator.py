"""The simulator against the testbed: simulated and measured time per iteration of every cell that the simulator can model.

    python -m benchmarks.validate_simulator short long --fit resnet50_v1,rho=1,compute=0.15
    python -m benchmarks.validate_simulator benchmarks/scratch/mine.csv

Reads published results, by name, or what ``benchmarks.run`` wrote. A method in a cell is simulated with the cell's measured goodput and
compared with the median of its jobs. Stock MXNet's push+pull, P3, methods with settings, and operations whose times vary have no model and
are left out.

What messages cost the processors of this machine is no property of the scheduler. It is taken in two ways: *fitted*, and *as measured* by
the jobs themselves when they started, which is what a user has. Both are one number, the time of a message. ``--fit CELL`` takes the value
of MESSAGES that has the least mean error in that cell; more than one number cannot be told from the few times of one cell. Without it,
``--costs`` has what was fitted before. The costs are in the result's metadata, with the cell they come from. The other cells are
predictions. A fit absorbs whatever else the machine did in those jobs. A cost at an end of MESSAGES need not be the true one.

Results are written as by benchmarks.run. Exit code 1 if the median error of the predictions with fitted costs is 10% or more, or nothing
was left to predict.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from prophet_mx.cli.arguments import checked
from prophet_mx.errors import ConfigError, ProphetError, not_allowed
from prophet_mx.planning.placement import BIGARRAY_BOUND, BIGARRAY_VARIABLE
from prophet_mx.simulation.predict import load_costs, predicted_seconds

from .comparison.cells import Cell
from .comparison.metadata import describe
from .comparison.results import Files, add_output_options, source, write_everywhere
from .comparison.rows import JobRow, by_cell
from .comparison.rows import read as read_jobs
from .comparison.tables import scaled

POLICY_OF = {
    "pushpull": "plain",
    "fifo": "fifo",
    "priority": "priority",
    "prophet": "prophet",
    "credit": "credit",
    "prophet-icpp21": "prophet-icpp21",
}
LIMIT = 0.10  # of the median error
COSTS_FILE = Files.published("simulator").about
FITTED, STARTED = "fitted", "as measured"

# What the fit tries: seconds of a message, each 1.2 times the one before, rounded to a microsecond.
MESSAGES = (0.0, *(round(1e-5 * 1.2**step, 6) for step in range(26)))


class Measured(NamedTuple):
    """A method in a cell: the goodput of a link (bytes/s), the median time of its jobs (seconds), and what a message cost as
    the cell's jobs measured it at their start (seconds; 0 if none did)."""

    cell: Cell
    method: str
    goodput: float
    seconds: float
    message: float = 0.0


class Check(NamedTuple):
    """A row of the result. Times in ms; error: as :func:`error_of` gives it."""

    costs: str  # FITTED or STARTED
    cell: str
    method: str
    measured_ms: float
    simulated_ms: float
    error: float
    fitted: bool  # the costs were fitted to this row


def read(paths: Sequence[Path]) -> List[Measured]:
    """What can be simulated of the CSV files, each a run of its own."""
    return [measured for path in paths for measured in measurements(read_jobs(path))]


def measurements(rows: Sequence[JobRow]) -> List[Measured]:
    """The same of the jobs of one run."""
    found = []
    for (text, _), mine in by_cell([row for row in rows if not row.aside and row.time_ms]).items():
        cell = Cell.parse(text)
        if cell.jitter:
            continue
        costs = [row.message_us for row in mine if row.message_us]
        for method in dict.fromkeys(row.method for row in mine if row.method in POLICY_OF):
            jobs = [row for row in mine if row.method == method]
            goodput = max(row.goodput_gbit or 0 for row in jobs) * 1e9 / 8
            seconds = statistics.median(row.time_ms or 0 for row in jobs) / 1e3
            found.append(Measured(cell, method, goodput, seconds, statistics.median(costs) / 1e6 if costs else 0.0))
    return found


def predict(cell: Cell, method: str, goodput: float, costs: Dict[str, float]) -> float:
    """Simulated seconds per iteration of a method in a cell whose links carry ``goodput`` bytes/s."""
    load = cell.load(goodput)
    bigarray = int(load.env.get(BIGARRAY_VARIABLE, BIGARRAY_BOUND))
    cluster = {**costs, "straggler": load.slow}  # fields of Cluster, as costs are
    return predicted_seconds(load.profile, goodput, cell.workers, cell.servers, POLICY_OF[method], costs=cluster, bigarray=bigarray)


def error_of(row: Measured, costs: Dict[str, float]) -> float:
    """Simulated / measured time - 1, with ``costs``."""
    return predict(row.cell, row.method, row.goodput, costs) / row.seconds - 1


def read_costs(path: Path) -> Tuple[Dict[str, float], List[str]]:
    """The costs of an earlier fit, and the cells that they come from. Raises ConfigError, OSError."""
    return load_costs(str(path)), json.loads(path.read_text(encoding="utf-8")).get("cells", [])


def costs_of_message(message: float, cell: Cell) -> Dict[str, float]:
    """The costs with which :func:`prophet_mx.simulation.cluster.message_time` of this cell is ``message`` (seconds)."""
    return {"message_seconds": message, "server_message_seconds": message * cell.servers / cell.workers}


def fit(rows: Sequence[Measured]) -> Dict[str, float]:
    """The costs of the time in MESSAGES with the least mean error over ``rows``, which are of one cell."""
    cell = rows[0].cell
    tried = {message: costs_of_message(message, cell) for message in MESSAGES}
    errors = {message: statistics.fmean(abs(error_of(row, costs)) for row in rows) for message, costs in tried.items()}
    best = min(errors, key=lambda message: errors[message])
    print(f"fit: {best * 1e6:.0f} us per message, mean error {errors[best]:.2%} in {cell}", flush=True)
    return tried[best]


def check(rows: Sequence[Measured], costs: Dict[str, float], fitted: Sequence[str]) -> List[Check]:
    """Simulate every row with ``costs``; ``fitted`` names the cells whose rows the costs come from."""
    return [_check(FITTED, row, costs, str(row.cell) in fitted) for row in rows]


def check_started(rows: Sequence[Measured]) -> List[Check]:
    """The same with what jobs measured at their start, where they did."""
    return [_check(STARTED, row, costs_of_message(row.message, row.cell), False) for row in rows if row.message]


def _check(name: str, row: Measured, costs: Dict[str, float], fitted: bool) -> Check:
    measured_ms, error = row.seconds * 1e3, error_of(row, costs)
    return Check(name, str(row.cell), row.method, round(measured_ms, 1), round(measured_ms * (1 + error), 1), round(error, 4), fitted)


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


def markdown(checks: Sequence[Check]) -> str:
    """What each kind of costs gives, and a table of all rows."""
    parts = [
        f"Costs {name}:\n\n- " + summary([c for c in checks if c.costs == name]).replace("\n", "\n- ")
        for name in dict.fromkeys(c.costs for c in checks)
    ]
    lines = [f"| {c.costs} | {c.cell} | {c.method} | {c.measured_ms:.0f} | {c.simulated_ms:.0f} | {c.error:+.1%} |" for c in checks]
    head = "| costs | cell | method | measured, ms | simulated, ms | error |\n|---|---|---|---:|---:|---:|"
    return "\n\n".join(parts) + "\n\n" + "\n".join([head, *lines]) + "\n"


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; see the top of this file. Returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.validate_simulator", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", metavar="RUN", help="published results' names, or CSV files of benchmarks.run")
    parser.add_argument("--fit", type=checked(Cell.parse), metavar="CELL", help="fit the costs on this cell")
    parser.add_argument("--costs", type=Path, default=COSTS_FILE, help="file of costs from an earlier fit (default %(default)s)")
    add_output_options(parser)
    options = parser.parse_args(arguments)
    try:
        runs = [read_jobs(source(run, options.published)) for run in options.runs]
        rows = [row for run in runs for row in measurements(run)]
        if options.fit:
            cells = [str(options.fit)]
            mine = [row for row in rows if row.cell == options.fit]
            if not mine:
                raise ConfigError(not_allowed(f"--fit {cells[0]}", ", ".join(sorted({str(row.cell) for row in rows}))))
            costs = fit(mine)
        else:
            costs, cells = read_costs(options.costs)
        fitted = check(rows, costs, cells)
        checks = fitted + check_started(rows)
        sent = scaled([job for run in runs for job in run])
    except (ProphetError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    named = ", ".join(f"{name} {value:g}" for name, value in costs.items())
    table = f"Fitted costs: {named}{''.join(f'; of {cell}' for cell in cells)}. {sent}\n\n{markdown(checks)}"
    print(table)
    about = {**describe("validate_simulator", arguments), "costs": costs, "cells": cells}
    write_everywhere(options, "validate_simulator", Check._fields, checks, table, about)
    predicted = [abs(c.error) for c in fitted if not c.fitted]
    return int(not predicted or statistics.median(predicted) >= LIMIT)


if __name__ == "__main__":
    sys.exit(main())
