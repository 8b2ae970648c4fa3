"""Rows of a comparison as CSV and as a Markdown table, with the machine and the versions they come from."""

import csv
import os
import platform
import statistics
from importlib.metadata import version
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from prophet_mx import __version__
from prophet_mx.quantities import format_rate

from ..testbed.goodput import Goodput
from .cells import Cell, Load
from .stolen import Stolen

Results = List[Dict[str, Any]]  # the workers' results of one job, by rank


class Job(NamedTuple):
    """A job that ran: its workers' results, and what was stolen meanwhile."""

    workers: Results
    stolen: Stolen


class Row(NamedTuple):
    """One method in one cell. Times: ms per iteration over all repeats, workers and iterations after the warm-up. An iteration is
    undisturbed if the machine's host took no more than a set share of a core while it ran; how long it took does not count."""

    cell: str
    method: str
    time_ms: float  # median
    p10_ms: float
    p90_ms: float
    mean_ms: float
    repeats_ms: str  # the median of each repeat
    bound_ms: float
    time_over_bound: float
    compute_ms: float
    rho: float
    megabytes: float  # that a worker pushes per iteration
    goodput_gbit: float  # of a link, both ways at once
    calls_ms: float  # of the main thread in the store's calls, median
    cpu_percent: float  # of a core, mean over the workers' loops
    server_cpu_percent: float  # of a core, all servers together
    memory_mb: float  # resident in a worker at the end, mean over them
    iterations: int  # measured
    wrong: int  # elements with a wrong value
    stolen_percent: float  # of a core, that the machine's host gave to others meanwhile
    undisturbed: int  # of the iterations
    undisturbed_ms: Optional[float] = None  # median of these, if there are any
    undisturbed_over_bound: Optional[float] = None


def machine(framework: str = "MXNet", package: str = "mxnet") -> str:
    """This machine and the versions, in one line."""
    return (
        f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}, "
        f"{framework} {version(package)}, prophet_mx {__version__}"
    )


def iteration_times(result: Dict[str, Any], warmup: int) -> List[float]:
    """Seconds of each iteration of a worker's result, without the first ``warmup``."""
    return [end - start for start, end in _iterations(result, warmup)]


def job_times(job: Job, warmup: int) -> List[float]:
    """The same of all workers of a job."""
    return [time for result in job.workers for time in iteration_times(result, warmup)]


def undisturbed_times(job: Job, warmup: int, max_stolen: float) -> List[float]:
    """Seconds of those iterations of a job's workers during which at most ``max_stolen`` cores were taken."""
    return [
        end - start for result in job.workers for start, end in _iterations(result, warmup) if job.stolen.cores(start, end) <= max_stolen
    ]


def _iterations(result: Dict[str, Any], warmup: int) -> List[Tuple[float, float]]:
    """When each began and ended."""
    starts = result["starts"][warmup:]
    return list(zip(starts, starts[1:]))


def make_row(cell: Cell, method: str, load: Load, goodput: Goodput, jobs: Sequence[Job], warmup: int, max_stolen: float) -> Row:
    """The row of a method: ``jobs`` are its repeats."""
    times = [[time * 1e3 for time in job_times(job, warmup)] for job in jobs]
    pooled = sorted(time for repeat in times for time in repeat)
    undisturbed = [time * 1e3 for job in jobs for time in undisturbed_times(job, warmup, max_stolen)]
    quiet = statistics.median(undisturbed) if undisturbed else None
    results = [result for job in jobs for result in job.workers]
    median = statistics.median(pooled)
    return Row(
        cell=str(cell),
        method=method,
        time_ms=round(median, 1),
        p10_ms=round(quantile(pooled, 0.1), 1),
        p90_ms=round(quantile(pooled, 0.9), 1),
        mean_ms=round(statistics.fmean(pooled), 1),
        repeats_ms=" ".join(f"{statistics.median(repeat):.0f}" for repeat in times),
        bound_ms=round(load.bound * 1e3, 1),
        time_over_bound=round(median / load.bound / 1e3, 3),
        compute_ms=round(load.profile.compute_seconds * 1e3, 1),
        rho=round(load.rho, 3),
        megabytes=round(load.profile.total_bytes / 1e6, 2),
        goodput_gbit=round(goodput.link * 8 / 1e9, 4),
        calls_ms=round(statistics.median(t for r in results for t in r["call_seconds"][warmup:]) * 1e3, 2),
        cpu_percent=round(100 * statistics.fmean(r["cpu_seconds"] / r["wall_seconds"] for r in results), 1),
        server_cpu_percent=round(100 * statistics.fmean(r["server_cpu_seconds"] / r["wall_seconds"] for r in results), 1),
        memory_mb=round(statistics.fmean(r["memory_bytes"] for r in results) / 1e6, 1),
        iterations=len(pooled),
        wrong=sum(r["wrong"] for r in results),
        stolen_percent=round(100 * statistics.fmean(job.stolen.cores() for job in jobs), 1),
        undisturbed=len(undisturbed),
        undisturbed_ms=None if quiet is None else round(quiet, 1),
        undisturbed_over_bound=None if quiet is None else round(quiet / load.bound / 1e3, 3),
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value in ``ordered`` that ``share`` of them are below."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def write(rows: Sequence[Row], folder: Path, name: str, command: str) -> List[Path]:
    """Write ``name``.csv and ``name``.md in ``folder`` and return their paths. ``command`` repeats the run."""
    return write_files(Row._fields, rows, folder / name, machine(), command, markdown(rows))


def write_files(fields: Sequence[str], rows: Sequence[Sequence[Any]], path: Path, about: str, command: str, table: str) -> List[Path]:
    """Write ``rows`` as CSV, each with what ``about`` says of the machine, and a Markdown ``table`` of them, beside each other at ``path``
    with two suffixes; return the paths."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values, text = path.with_name(path.name + ".csv"), path.with_name(path.name + ".md")
    with open(values, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*fields, "machine"))
        writer.writerows((*row, about) for row in rows)
    text.write_text(f"{about}\n\n`{command}`\n\n{table}")
    return [values, text]


def markdown(rows: Sequence[Row]) -> str:
    """A table per cell; times in ms per iteration."""
    parts = []
    for cell in dict.fromkeys(row.cell for row in rows):
        mine = [row for row in rows if row.cell == cell]
        first = mine[0]
        parts.append(
            f"**{cell}**: {first.megabytes:g} MB, compute {first.compute_ms:g} ms, rho {first.rho:g}, link goodput "
            f"{format_rate(first.goodput_gbit * 1e9 / 8)} each way, bound {first.bound_ms:g} ms\n\n"
            "| method | time, ms | 10% to 90% | mean | repeats | time / bound | calls, ms | CPU | servers' CPU | memory, MB | stolen "
            "| undisturbed |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n"
            + "".join(
                f"| {row.method} | {row.time_ms:.0f} | {row.p10_ms:.0f} to {row.p90_ms:.0f} | {row.mean_ms:.0f} | "
                f"{row.repeats_ms} | {row.time_over_bound:.3f} | {row.calls_ms:.1f} | {row.cpu_percent:.0f}% | "
                f"{row.server_cpu_percent:.0f}% | {row.memory_mb:.0f} | {row.stolen_percent:.0f}% | {_undisturbed(row)} |"
                + (f" **{row.wrong} wrong values**" if row.wrong else "")
                + "\n"
                for row in mine
            )
        )
    return "\n".join(parts)


def _undisturbed(row: Row) -> str:
    count = f"{row.undisturbed} of {row.iterations}"
    if row.undisturbed_ms is None or row.undisturbed_over_bound is None:
        return count
    return f"{row.undisturbed_ms:.0f} ({row.undisturbed_over_bound:.3f}), {count}"
