"""What a comparison of all-reduces is made of: its cells, its methods, its rows."""

import re
import statistics
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence

from prophet_mx.errors import ConfigError
from prophet_mx.planning.bound import lower_bound
from prophet_mx.planning.collectives import ring_rate
from prophet_mx.profiling.gradient_profile import GradientProfile
from prophet_mx.quantities import format_rate, parse_size

from ..testbed.emulated import forward_groups
from ..testbed.goodput import Goodput
from .cells import Cell, Load
from .rows import Job, job_times, machine, quantile, undisturbed_times, write_files

REAL = "real"  # instead of a profile: real training
KINDS = ("device", "cpu")
STEPS = ",ready=steps"


def by_operator(profile: GradientProfile) -> GradientProfile:
    """The profile as PyTorch has it: each operation's gradients are ready at the end of its own backward."""
    steps = tuple(tuple(indices) for indices, _ in reversed(forward_groups(profile)))
    return replace(profile, steps=steps, gradients=tuple(replace(gradient, ready=None) for gradient in profile.gradients))


class RingCell(NamedTuple):
    """A model, ranks in a ring, and how communication and compute compare.

    Attributes
    ----------
    cell : as of a comparison of parameter servers, with as many servers as workers: each rank's link then carries all of its own bytes.
    kind : "device" or "cpu", see testbed/emulated_torch.py; real training is on the processor.
    steps : gradients are ready in the profile's steps, many at once, as those of MXNet are, and of a model whose parts are compiled; else
        operation by operation. In a cell's text: ``ready=steps``.
    """

    cell: Cell
    kind: str
    steps: bool = False

    @classmethod
    def parse(cls, text: str, kind: str) -> "RingCell":
        """The cell of a text such as ``resnet50_v1,ranks=2,rho=1,compute=0.15,rate=1Gbit`` or ``real,ranks=2,rate=1Gbit``."""
        cell = Cell.parse(text.replace(STEPS, "").replace("ranks=", "workers="))
        return cls(replace(cell, servers=cell.workers), kind, STEPS in text)

    def __str__(self) -> str:
        return re.sub(r",servers=\d+", "", str(self.cell)).replace("workers=", "ranks=") + STEPS * self.steps

    @property
    def ranks(self) -> int:
        return self.cell.workers

    def load(self, goodput: float) -> Optional[Load]:
        """The profile at this cell's sizes and times for links that carry ``goodput`` bytes/s, and its bound; None for real training."""
        if self.cell.profile == REAL:
            return None
        load = self.cell.load(ring_rate(goodput, self.ranks))
        profile = load.profile if self.steps else by_operator(load.profile)
        slowest = profile.scaled(compute=profile.compute_seconds * (self.cell.slow or 1))
        return load._replace(profile=profile, bound=lower_bound(slowest, load.rate))


class RingMethod(NamedTuple):
    """How a job's ranks reduce: see RankTask. ``env`` is added to the environment of all of them."""

    name: str
    scheduled: bool
    bucket: Optional[int]
    bf16: bool
    env: Dict[str, str]


STANDARD = ("ddp", "ddp-512KB", "ddp-1MB", "ddp-2MB", "ddp-4MB", "ddp-8MB", "ddp-bf16", "ddp-bf16-2MB", "scheduled")


def parse(text: str) -> RingMethod:
    """``ddp``, ``ddp-4MB`` (buckets), ``ddp-bf16``, ``ddp-bf16-4MB``, or ``scheduled`` with settings if wanted:
    ``scheduled:PROPHET_UNIT=1MB``. Raises ConfigError."""
    name, *settings = text.split(":")
    found = re.fullmatch(r"ddp(-bf16)?(?:-(\d+[KM]B))?|(scheduled)", name)
    if not found or not all("=" in setting for setting in settings):
        raise ConfigError(f"no method {text!r}; there are {', '.join(STANDARD)}, with any size, and scheduled:NAME=VALUE")
    bf16, bucket, scheduled = found.groups()
    env = dict(setting.split("=", 1) for setting in settings)
    return RingMethod(text, bool(scheduled), parse_size(bucket) if bucket else None, bool(bf16), env)


class RingRow(NamedTuple):
    """One method in one cell. Times: ms per iteration over all repeats, ranks and iterations after the warm-up."""

    cell: str
    kind: str
    method: str
    time_ms: float  # median
    p10_ms: float
    p90_ms: float
    repeats_ms: str  # the median of each repeat
    bound_ms: Optional[float]
    time_over_bound: Optional[float]
    best_ddp_over_time: Optional[float]  # the best of the cell's DDP without compression
    megabytes: Optional[float]  # of a rank's gradients per iteration
    goodput_gbit: float  # of a link, both ways at once
    calls_ms: float  # in optimizer.step() and zero_grad(), median
    cpu_percent: float  # of a core, mean over the ranks
    memory_mb: float
    iterations: int  # measured
    wrong: int  # gradients with a wrong value
    stolen_percent: float  # of a core, that the machine's host gave to others meanwhile
    undisturbed: int  # of the iterations, those with at most a tenth of a core stolen
    undisturbed_ms: Optional[float]


def make_rows(
    cell: RingCell, load: Optional[Load], goodput: Goodput, jobs: Dict[str, List[Job]], warmup: int, max_stolen: float
) -> List[RingRow]:
    """The rows of a cell; ``jobs``: the repeats of each method."""
    medians = {name: statistics.median(time for job in ran for time in job_times(job, warmup)) for name, ran in jobs.items()}
    baselines = [medians[name] for name in medians if name.startswith("ddp") and "bf16" not in name]
    best = min(baselines) if baselines else None
    rows = []
    for name, ran in jobs.items():
        pooled = sorted(time * 1e3 for job in ran for time in job_times(job, warmup))
        quiet = [time * 1e3 for job in ran for time in undisturbed_times(job, warmup, max_stolen)]
        results = [result for job in ran for result in job.workers]
        rows.append(
            RingRow(
                cell=str(cell),
                kind=cell.kind,
                method=name,
                time_ms=round(medians[name] * 1e3, 1),
                p10_ms=round(quantile(pooled, 0.1), 1),
                p90_ms=round(quantile(pooled, 0.9), 1),
                repeats_ms=" ".join(f"{statistics.median(job_times(job, warmup)) * 1e3:.0f}" for job in ran),
                bound_ms=None if load is None else round(load.bound * 1e3, 1),
                time_over_bound=None if load is None else round(medians[name] / load.bound, 3),
                best_ddp_over_time=None if best is None else round(best / medians[name], 3),
                megabytes=None if load is None else round(load.profile.total_bytes / 1e6, 2),
                goodput_gbit=round(goodput.link * 8 / 1e9, 4),
                calls_ms=round(statistics.median(time for r in results for time in r["call_seconds"][warmup:]) * 1e3, 2),
                cpu_percent=round(100 * statistics.fmean(r["cpu_seconds"] / r["wall_seconds"] for r in results), 1),
                memory_mb=round(statistics.fmean(r["memory_bytes"] for r in results) / 1e6, 1),
                iterations=len(pooled),
                wrong=sum(r["wrong"] for r in results),
                stolen_percent=round(100 * statistics.fmean(job.stolen.cores() for job in ran), 1),
                undisturbed=len(quiet),
                undisturbed_ms=round(statistics.median(quiet), 1) if quiet else None,
            )
        )
    return rows


def write(rows: Sequence[RingRow], folder: Path, name: str, command: str) -> List[Path]:
    """Write ``name``.csv and ``name``.md in ``folder`` and return their paths. ``command`` repeats the run."""
    here = Path(__file__).parent
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=here, stdout=subprocess.PIPE, text=True).stdout.strip()
    about = f"{machine('PyTorch', 'torch')}, commit {commit or 'unknown'}"
    return write_files(RingRow._fields, rows, folder / name, about, command, markdown(rows))


def markdown(rows: Sequence[RingRow]) -> str:
    """A table per cell; times in ms per iteration."""
    parts = []
    for cell, kind in dict.fromkeys((row.cell, row.kind) for row in rows):
        mine = [row for row in rows if (row.cell, row.kind) == (cell, kind)]
        first = mine[0]
        about = "real training" if first.bound_ms is None else f"{first.megabytes:g} MB, bound {first.bound_ms:g} ms"
        parts.append(
            f"**{cell}, {'all on the processor' if kind == 'cpu' else 'device emulated'}**: {about}, link goodput "
            f"{format_rate(first.goodput_gbit * 1e9 / 8)} each way\n\n"
            "| method | time, ms | 10% to 90% | repeats | time / bound | best DDP / time | calls, ms | CPU | stolen | undisturbed |\n"
            "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n" + "".join(map(_line, mine))
        )
    return "\n".join(parts)


def _line(row: RingRow) -> str:
    quiet = "" if row.undisturbed_ms is None else f"{row.undisturbed_ms:.1f}, "
    return (
        f"| {row.method} | {row.time_ms:.1f} | {row.p10_ms:.0f} to {row.p90_ms:.0f} | {row.repeats_ms} | {row.time_over_bound or ''} | "
        f"{row.best_ddp_over_time or ''} | {row.calls_ms:.1f} | {row.cpu_percent:.0f}% | {row.stolen_percent:.0f}% | "
        f"{quiet}{row.undisturbed} of {row.iterations} |" + (f" **{row.wrong} wrong values**" if row.wrong else "") + "\n"
    )
