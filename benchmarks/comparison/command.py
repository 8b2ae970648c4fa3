"""What the commands that compare have in common: how jobs are run and repeated, and what becomes of their rows."""

import argparse
import fcntl
import random
import statistics
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from prophet_mx.cli.arguments import count, duration
from prophet_mx.errors import ProphetError

from ..questions import QUESTIONS
from ..testbed import NeedsRoot
from ..testbed.exits import exit_code
from ..testbed.goodput import Goodput
from .cells import Load
from .joined import joined
from .metadata import fingerprint
from .results import Files, add_output_options, comparison_table, destinations, load, write
from .rounds import LEAST_GOODPUT, conduct
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
    parser.add_argument("--repeats", type=count, default=3, help="jobs per method and cell that count (default 3)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the order of the methods (default 0)")
    parser.add_argument(
        "--tries", type=count, default=3, help="most attempts for one job; then the one with the best links counts (default 3)"
    )
    add_output_options(parser)


@contextmanager
def turn(lock: Optional[Path]) -> Iterator[None]:
    """Holds the lock on a file, if one is given. Waits for it without limit."""
    if lock is None:
        yield
        return
    with open(lock, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Session:
    """The jobs of one cell. ``measure`` measures the links of ``rate`` (bytes/s); ``goodput`` is what the cell is scaled to."""

    def __init__(self, cell: str, kind: str, rate: float, measure: Callable[[], Goodput], options: argparse.Namespace) -> None:
        self._cell, self._kind, self._rate, self._options = cell, kind, rate, options
        self._measure = measure
        self._measured: List[Goodput] = []
        while len(self._measured) < options.tries and not self._good():
            self._measured.append(self._again())
        self.goodput = max(self._measured, key=lambda goodput: goodput.link)
        print(f"{cell}{kind and ', ' + kind}\n  goodput {self.goodput}, {self.goodput.link / rate:.1%} of the links' rate", flush=True)
        if self.goodput.shortfall(rate):
            print(self.goodput.shortfall(rate), file=sys.stderr, flush=True)

    def _good(self) -> bool:
        return bool(self._measured) and self._measured[-1].link >= LEAST_GOODPUT * self._rate

    def _again(self) -> Goodput:
        with turn(self._options.lock):
            return self._measure()

    def attempts(self, methods: Sequence[str], run: Callable[[str], MeasuredJob], repeats: Optional[int] = None) -> List[Attempt]:
        """Run the jobs, see :func:`benchmarks.comparison.rounds.conduct`; ``repeats`` in place of the option."""
        options = self._options
        first = [self._measured[-1]]  # is as good for the first round
        return conduct(
            methods,
            run,
            lambda: first.pop() if first else self._again(),
            self._rate,
            repeats or options.repeats,
            options.tries,
            random.Random(f"{options.seed} {self._cell} {self._kind}"),
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
        """The rows of all attempts. The bound is that of the best goodput measured: a link does not give more than it can."""
        if load is not None:
            best = max([self.goodput.link, *(attempt.goodput.link for attempt in attempts)])
            load = load.at(load.rate * best / self.goodput.link)
        return [make_row(self._cell, self._kind, load, self._rate, attempt, self._options.warmup) for attempt in attempts]


def compare(cells: Iterator[List[JobRow]], options: argparse.Namespace, module: str, about: Mapping[str, Any]) -> int:
    """Take the rows of cells as these are run, write them after each, print and write the table in the end, and return the exit code:
    1 if a job failed, a value was wrong, a method was faster than the bound, or an error ended it; 3 without the privileges, 130 after
    Ctrl-C. Wrong values, times below the bound, and what an error ended are not published. With ``about["only"]``, the cells that were run,
    other cells stay as they are published."""
    print(f"seed {options.seed}", flush=True)
    scratch, *published = destinations(options, module)
    rows: List[JobRow] = []
    failed = False
    try:
        for found in cells:
            rows += found
            write(scratch, JobRow._fields, rows, None, about)
    except NeedsRoot as error:
        return exit_code(error)
    except ProphetError as error:
        exit_code(error)
        failed = True
    except KeyboardInterrupt:
        return 130
    if not rows:
        return 1
    return _report(rows, about, scratch, [] if failed else published) or int(failed or any(row.aside.startswith("failed") for row in rows))


def _report(rows: Sequence[JobRow], about: Mapping[str, Any], scratch: Files, published: Sequence[Files]) -> int:
    try:
        table = comparison_table(rows, about)
    except BelowBoundError as error:
        print(f"written: {scratch.data}, without a table", flush=True)
        return exit_code(error)
    print(table)
    wrong = any(row.wrong for row in rows)
    for files in [scratch] if wrong else [scratch, *published]:
        if files is not scratch and about.get("only"):
            rows, about = _with_others(files, rows, about)
            table = comparison_table(rows, about)
        write(files, JobRow._fields, rows, table, about)
        print(f"written: {files.table}")
    return int(wrong)


def _with_others(files: Files, rows: Sequence[JobRow], about: Mapping[str, Any]) -> Tuple[List[JobRow], Dict[str, Any]]:
    """The same with the cells of the published result that were not measured now."""
    question = QUESTIONS[files.about.parent.name]
    return joined(load(question.name), rows, about, fingerprint(question.alters))


def protocol(
    options: argparse.Namespace, cells: Sequence[str], methods: Sequence[str], best: Mapping[str, Sequence[str]]
) -> Dict[str, Any]:
    """The part of a result's metadata that says what was asked for. ``best``: methods of a cell alone."""
    return {
        "cells": list(cells),
        "methods": list(methods),
        "best": {cell: list(names) for cell, names in best.items()},
        "seed": options.seed,
        "repeats": options.repeats,
        "tries": options.tries,
    }
