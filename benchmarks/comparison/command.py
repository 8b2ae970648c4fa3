"""What the commands that compare have in common: how jobs are run and repeated, and what becomes of their rows.

Rounds are the outer loop and cells the inner one, so that what the machine does meanwhile meets all cells. After each cell of a round
everything is written; ``--resume`` goes on from there.
"""

import argparse
import fcntl
import random
import statistics
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

from prophet_mx.cli.arguments import count, duration
from prophet_mx.errors import ProphetError

from ..testbed import NeedsRoot, TestbedError
from ..testbed.exits import exit_code
from ..testbed.goodput import Goodput
from .cells import HALVED, Load
from .results import Files, add_output_options, comparison_table, destinations, interrupted, write
from .rounds import LEAST_GOODPUT, conduct, going_on
from .rows import Attempt, JobRow, MeasuredJob, make_row
from .summaries import BelowBoundError


def add_job_options(parser: argparse.ArgumentParser) -> None:
    """Of one job."""
    parser.add_argument("--iterations", type=count, default=10, help="measured iterations per job (default 10)")
    parser.add_argument(
        "--warmup", type=count, default=14, help="iterations before them that do not count, until orders are exchanged (default 14)"
    )
    parser.add_argument("--timeout", type=duration, default=300, help="seconds a job may take (default 300)")
    parser.add_argument("--lock", type=Path, metavar="FILE", help="hold a lock on this file while a job runs")


def add_comparison_options(parser: argparse.ArgumentParser) -> None:
    """Of a comparison: what :class:`Session` and :func:`compare` read."""
    add_job_options(parser)
    parser.add_argument("--repeats", type=count, default=3, help="rounds: jobs per method and cell that count (default 3)")
    parser.add_argument("--until", type=count, metavar="ROUND", help="end after this round, and publish nothing before the last one")
    parser.add_argument("--seed", type=int, default=0, help="seed of the order of the methods (default 0)")
    parser.add_argument(
        "--tries", type=count, default=3, help="most attempts for one job; then the one with the best links counts (default 3)"
    )
    add_output_options(parser)
    parser.add_argument("--resume", action="store_true", help="go on where the run of this --name ended, if it was of the same code")


@contextmanager
def turn(lock: Optional[Path]) -> Iterator[None]:
    """Holds the lock on a file, if one is given. Waits for it without limit."""
    if lock is None:
        yield
        return
    with open(lock, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Kept:
    """What is known of a cell when a round begins.

    Attributes
    ----------
    number : of the round.
    rows : the jobs of the rounds before.
    found : what was found out once and holds for all rounds, as JSON. It is written with the rows.
    """

    def __init__(self, number: int, rows: Sequence[JobRow], found: Dict[str, Any]) -> None:
        self.number, self.rows, self.found = number, list(rows), found


class CellOfJobs(NamedTuple):
    """A cell: its name and kind as in :class:`JobRow`, and what runs a round of it and returns the rows of all its rounds. That raises
    TestbedError if it could not be run, and ProphetError if nothing of the whole comparison may be used."""

    cell: str
    kind: str
    run: Callable[[Kept], List[JobRow]]


class Session:
    """A round of a cell. ``measure`` measures the links of ``rate`` (bytes/s); ``goodput`` is what the cell is scaled to: the first
    round's."""

    def __init__(self, cell: str, kind: str, rate: float, measure: Callable[[], Goodput], options: argparse.Namespace, kept: Kept) -> None:
        self._cell, self._kind, self._rate, self._options, self._kept = cell, kind, rate, options, kept
        self._measure = measure
        self._measured: List[Goodput] = []
        while len(self._measured) < options.tries and not self._good():
            self._measured.append(self._again())
        best = max(self._measured, key=lambda goodput: goodput.link)
        self.goodput = Goodput(*kept.found.setdefault("goodput", [best.up, best.down, best.rtt]))
        print(f"{cell}{kind and ', ' + kind}\n  goodput {best}, {best.link / rate:.1%} of the links' rate", flush=True)
        if best.shortfall(rate):
            print(best.shortfall(rate), file=sys.stderr, flush=True)

    def _good(self) -> bool:
        return bool(self._measured) and self._measured[-1].link >= LEAST_GOODPUT * self._rate

    def _again(self) -> Goodput:
        with turn(self._options.lock):
            return self._measure()

    def attempts(self, methods: Sequence[str], run: Callable[[str], MeasuredJob]) -> List[Attempt]:
        """Run a job of each method, see :func:`benchmarks.comparison.rounds.conduct`."""
        options, number = self._options, self._kept.number
        first = [self._measured[-1]]  # is as good for the first jobs
        return conduct(
            number,
            going_on(methods, self._kept.rows),
            run,
            lambda: first.pop() if first else self._again(),
            self._rate,
            options.tries,
            random.Random(f"{options.seed} {self._cell} {self._kind} {number}"),
            self._say,
        )

    def _say(self, attempt: Attempt) -> None:
        if attempt.job is None:
            print(f"error: {attempt.method}: {attempt.aside}", file=sys.stderr, flush=True)
            return
        time = statistics.median(attempt.job.times(self._options.warmup)) * 1e3
        aside = f"; set aside: {attempt.aside}" if attempt.aside else ""
        print(f"  round {attempt.round}, {attempt.method}: {time:.1f} ms{aside}", flush=True)

    def rows(self, attempts: Sequence[Attempt], load: Optional[Load]) -> List[JobRow]:
        """The rows of these attempts. The bound is that of the best goodput measured: a link does not give more than it can."""
        links = [*(goodput.link for goodput in self._measured), *(attempt.goodput.link for attempt in attempts)]
        best = self._kept.found["link"] = max(self._kept.found.get("link", 0.0), *links)
        if load is not None:
            load = load.at(load.rate * best / self.goodput.link)
        rows = []
        for attempt in attempts:
            own = None if load is None else load.of(attempt.method)
            rows.append(make_row(self._cell, self._kind, own, self._rate, attempt, self._options.warmup))
        return rows


def same_bound(rows: Sequence[JobRow]) -> List[JobRow]:
    """The rows of a cell with the least bound of its rounds. What sends half the bytes has a bound of its own."""
    bounds: Dict[bool, List[float]] = {}
    for row in rows:
        if row.bound_ms is not None:
            bounds.setdefault(HALVED in row.method, []).append(row.bound_ms)
    return [row if row.bound_ms is None else _with_bound(row, min(bounds[HALVED in row.method])) for row in rows]


def _with_bound(row: JobRow, bound: float) -> JobRow:
    if row.bound_ms == bound:
        return row
    return row._replace(bound_ms=bound, time_over_bound=round((row.time_ms or 0) / bound, 4))


def compare(cells: Sequence[CellOfJobs], options: argparse.Namespace, module: str, about: Mapping[str, Any]) -> int:
    """Run the rounds of all cells, write their rows after each cell of a round, print and write the table in the end, and return the exit
    code: 1 if a job or a cell failed, a value was wrong, a method was faster than the bound, or an error ended it; 3 without the
    privileges, 130 after Ctrl-C. Wrong values, times below the bound, and what an error ended are not published, nor is a run before its
    last round. A cell that fails is tried again in the next round, and does not end the others."""
    print(f"seed {options.seed}", flush=True)
    scratch, *published = destinations(options, module)
    rows, about = interrupted(scratch, about) if options.resume else ([], {**about, "done": {}, "found": {}})
    done, found = about["done"], about["found"]
    last = min(options.until or options.repeats, options.repeats)
    ended = failed = False
    try:
        for number in range(1, last + 1):
            for cell in cells:
                key = f"{cell.cell} {cell.kind}".strip()
                if done.get(key, 0) >= number:
                    continue
                mine = [row for row in rows if (row.cell, row.kind) == (cell.cell, cell.kind)]
                try:
                    now = cell.run(Kept(done.get(key, 0) + 1, mine, found.setdefault(key, {})))
                except TestbedError as error:
                    exit_code(error)
                    failed = True
                    continue
                if "best" in found[key]:
                    about["best"][cell.cell] = found[key]["best"]
                done[key] = done.get(key, 0) + 1
                rows = [*(row for row in rows if row not in mine), *same_bound([*mine, *now])]
                write(scratch, JobRow._fields, rows, None, about)
    except NeedsRoot as error:
        return exit_code(error)
    except ProphetError as error:
        exit_code(error)
        ended = True
    except KeyboardInterrupt:
        return 130
    if not rows:
        return 1
    order = [(cell.cell, cell.kind) for cell in cells]
    rows.sort(key=lambda row: order.index((row.cell, row.kind)))
    complete = last == options.repeats and not ended
    return _report(rows, about, scratch, published if complete else []) or int(
        ended or failed or any(row.aside.startswith("failed") for row in rows)
    )


def _report(rows: Sequence[JobRow], about: Mapping[str, Any], scratch: Files, published: Sequence[Files]) -> int:
    try:
        table = comparison_table(rows, about)
    except BelowBoundError as error:
        print(f"written: {scratch.data}, without a table", flush=True)
        return exit_code(error)
    print(table)
    wrong = any(row.wrong for row in rows)
    write(scratch, JobRow._fields, rows, table, about)
    print(f"written: {scratch.table}")
    public = {name: value for name, value in about.items() if name not in ("done", "found", "code")}
    for files in [] if wrong else published:
        write(files, JobRow._fields, rows, table, public)
        print(f"written: {files.table}")
    return int(wrong)


def protocol(options: argparse.Namespace, cells: Sequence[str], methods: Sequence[str]) -> Dict[str, Any]:
    """The part of a result's metadata that says what was asked for. ``best``: methods of a cell alone, which are found in it."""
    return {
        "cells": list(cells),
        "methods": list(methods),
        "best": {},
        "seed": options.seed,
        "repeats": options.repeats,
        "tries": options.tries,
        "iterations": options.iterations,
        "warmup": options.warmup,
    }
