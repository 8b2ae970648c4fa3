"""The jobs of a comparison, and a row of a CSV file for each."""

import csv
import os
import statistics
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..testbed.goodput import Goodput
from .cells import Load

Results = List[Dict[str, Any]]  # the workers' results of one job, by rank


class MeasuredJob(NamedTuple):
    """A job that ran: its workers' results."""

    workers: Results

    def times(self, warmup: int) -> List[float]:
        """Seconds of all iterations of all workers, without the first ``warmup`` of each."""
        return [time for result in self.workers for time in iteration_times(result, warmup)]


class Attempt(NamedTuple):
    """A job that was tried. ``job`` is None if it failed; ``aside``: why it does not count, '' if it does."""

    method: str
    round: int
    job: Optional[MeasuredJob]
    goodput: Goodput
    aside: str


def iteration_times(result: Dict[str, Any], warmup: int) -> List[float]:
    """Seconds of each iteration of a worker's result, without the first ``warmup``."""
    starts = result["starts"][warmup:]
    return [end - start for start, end in zip(starts, starts[1:])]


class JobRow(NamedTuple):
    """One job of one method in one cell. Times: ms per iteration over all workers and iterations after the warm-up. Of a job that
    failed there is no more than the cell, the method and why; of real training no bound."""

    cell: str
    kind: str  # of PyTorch's jobs: "device" or "cpu"; "gpu": a script on emulated GPUs
    method: str
    round: int
    aside: str  # why it does not count, "" if it does
    time_ms: Optional[float] = None  # median
    p10_ms: Optional[float] = None
    p90_ms: Optional[float] = None
    bound_ms: Optional[float] = None
    time_over_bound: Optional[float] = None
    compute_ms: Optional[float] = None
    rho: Optional[float] = None
    megabytes: Optional[float] = None  # that a worker pushes per iteration
    model_megabytes: Optional[float] = None  # that it would, were the model not scaled
    goodput_gbit: Optional[float] = None  # of a link, both ways at once, before the job
    goodput_share: Optional[float] = None  # of the link's rate
    calls_ms: Optional[float] = None  # of the main thread in the store's or the optimizer's calls, median
    cpu_percent: Optional[float] = None  # of a core, mean over the workers' loops
    server_cpu_percent: Optional[float] = None  # of a core, all servers together
    memory_mb: Optional[float] = None  # resident in a worker, mean over them
    message_us: Optional[float] = None  # that a message takes, as the job measured it at its start
    unit_kb: Optional[float] = None  # of the units that it then chose
    iterations: int = 0  # measured
    wrong: int = 0  # elements, or gradients, with a wrong value
    images: int = 0  # that all workers together train on per iteration, where a script trains
    accuracy: Optional[float] = None  # share of them that was recognised, in the measured iterations
    weights: str = ""  # a hash of those of all workers in the end
    cores_percent: Optional[float] = None  # of all cores, that workers and servers took
    port_drops: Optional[float] = None  # packets, in the whole job
    host_drops: Optional[float] = None
    resent_percent: Optional[float] = None  # of the bytes that TCP sent
    start_s: Optional[float] = None  # from the start of the processes to full speed: what the first iterations take longer counts

    @property
    def speed(self) -> float:
        """Images per second. ValueError for a job that trains on none, or failed."""
        if not self.images or not self.time_ms:
            raise ValueError(f"{self.cell}, {self.method}: trained on no images")
        return 1e3 * self.images / self.time_ms


def make_row(cell: str, kind: str, load: Optional[Load], rate: float, attempt: Attempt, warmup: int) -> JobRow:
    """The row of an attempt; ``rate``: bytes/s of a link."""
    row = JobRow(cell, kind, attempt.method, attempt.round, attempt.aside, goodput_gbit=round(attempt.goodput.link * 8 / 1e9, 4))
    row = row._replace(goodput_share=round(attempt.goodput.link / rate, 3))
    if attempt.job is None:
        return row
    times = sorted(1e3 * time for time in attempt.job.times(warmup))
    median = statistics.median(times)
    if load is not None:
        row = row._replace(
            bound_ms=round(load.bound * 1e3, 1),
            time_over_bound=round(median / load.bound / 1e3, 4),
            compute_ms=round(load.profile.compute_seconds * 1e3, 1),
            rho=round(load.rho, 3),
            megabytes=round(load.profile.total_bytes / 1e6, 2),
            model_megabytes=round(load.model_bytes / 1e6, 2),
        )
    row = row._replace(
        time_ms=round(median, 2),
        p10_ms=round(quantile(times, 0.1), 1),
        p90_ms=round(quantile(times, 0.9), 1),
        iterations=len(times),
        **_of_workers(attempt.job.workers, warmup),
    )
    return row if row.server_cpu_percent is None else row._replace(cores_percent=cores_percent(row, len(attempt.job.workers)))


def _of_workers(results: Results, warmup: int) -> Dict[str, Any]:
    servers = [100 * result["server_cpu_seconds"] / result["wall_seconds"] for result in results if "server_cpu_seconds" in result]
    calls = [time for result in results for time in result.get("call_seconds", ())[warmup:]]
    memory = [result["memory_bytes"] for result in results if "memory_bytes" in result]
    lost = results[0].get("losses") or {}
    launches = [_launch(result, warmup) for result in results if "launch_seconds" in result]
    stats: Dict[str, Any] = results[0].get("stats") or {}
    return {
        "calls_ms": round(statistics.median(calls) * 1e3, 2) if calls else None,
        "cpu_percent": round(100 * statistics.fmean(result["cpu_seconds"] / result["wall_seconds"] for result in results), 1),
        "server_cpu_percent": round(statistics.fmean(servers), 1) if servers else None,
        "memory_mb": round(statistics.fmean(memory) / 1e6, 1) if memory else None,
        "message_us": round(1e6 * stats["message_seconds"], 1) if stats.get("message_seconds") else None,
        "unit_kb": round(stats["unit_bytes"] / 1e3, 1) if stats.get("unit_bytes") else None,
        "wrong": sum(result["wrong"] for result in results),
        "port_drops": lost.get("ports"),
        "host_drops": lost.get("hosts"),
        "resent_percent": round(100 * lost["resent"] / lost["sent"], 3) if lost.get("sent") else None,
        "start_s": round(max(launches), 2) if launches else None,
    }


def cores_percent(row: JobRow, workers: int) -> float:
    """What a job's workers and servers took of the machine's cores."""
    return round(((row.cpu_percent or 0) * workers + (row.server_cpu_percent or 0)) / len(os.sched_getaffinity(0)), 1)


def _launch(result: Dict[str, Any], warmup: int) -> float:
    """Seconds of a worker before its first iteration, and those that its warm-up took longer than as many later ones."""
    starts = result["starts"]
    return float(result["launch_seconds"] + starts[warmup] - starts[0] - warmup * statistics.median(iteration_times(result, warmup)))


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value in ``ordered`` that ``share`` of them are below."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def write_csv(path: Path, fields: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(fields)
        writer.writerows(rows)


_TEXTS = ("cell", "kind", "method", "aside", "weights")
_COUNTS = ("round", "iterations", "wrong", "images")


def read(path: Path) -> List[JobRow]:
    """The jobs in a CSV file, which may have some of the columns only. Raises OSError; KeyError if it has no cells and methods."""
    with open(path, newline="") as file:
        found = [{"kind": "", "round": 1, "aside": "", **row, "cell": row["cell"], "method": row["method"]} for row in csv.DictReader(file)]
    return [JobRow(**{name: _value(name, row[name]) for name in JobRow._fields if name in row}) for row in found]


def _value(name: str, text: Any) -> Any:
    if name in _TEXTS:
        return text
    if name in _COUNTS:
        return int(text or 0)
    return float(text) if text else None


def by_cell(rows: Sequence[JobRow]) -> Dict[Tuple[str, str], List[JobRow]]:
    """(cell, kind) -> its jobs, cells in the order in which they ran."""
    cells: Dict[Tuple[str, str], List[JobRow]] = {}
    for row in rows:
        cells.setdefault((row.cell, row.kind), []).append(row)
    return cells
