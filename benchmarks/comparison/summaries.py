"""What the jobs of a comparison say: a median with its interval per method and cell, and by how much one method is faster than another.

Intervals are by a bootstrap. Iterations of one job are alike, so a job counts once.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from prophet_mx.errors import ProphetError

from .rows import JobRow, by_cell

DRAWS = 10_000
SHARE = 0.95
SEED = 1  # of the draws: the same jobs give the same interval


class Interval(NamedTuple):
    """A median and between what 95% of the medians lie that other draws of the same jobs would have given. Of three jobs these are the
    smallest and the largest."""

    median: float
    low: float
    high: float

    def __contains__(self, value: object) -> bool:
        return isinstance(value, (int, float)) and self.low <= value <= self.high

    def text(self, digits: int = 0) -> str:
        """``651 (645 to 660)``; of one job ``651`` alone."""
        median, low, high = (f"{value:.{digits}f}" for value in self)
        return median if self.low == self.high else f"{median} ({low} to {high})"


def of_median(values: Sequence[float]) -> Interval:
    """The interval of the median of a value per job. ValueError without any."""
    if not len(values):
        raise ValueError("no job, no median")
    draws = np.random.default_rng(SEED).choice(np.asarray(values, float), size=(DRAWS, len(values)))
    low, high = np.quantile(np.median(draws, axis=1), [(1 - SHARE) / 2, (1 + SHARE) / 2])
    return Interval(float(np.median(values)), float(low), float(high))


def of_paired_ratio(above: Sequence[Optional[float]], below: Sequence[Optional[float]]) -> Optional[Interval]:
    """The interval of the median ratio of jobs that ran in the same round: what slows a round slows both. None without a common round."""
    ratios = [a / b for a, b in zip(above, below) if a is not None and b is not None]
    return of_median(ratios) if ratios else None


OURS = ("prophet", "scheduled")  # what the others are compared with, where it is there
LEFT_OUT = "not measured"


class BelowBoundError(ProphetError):
    """A method is faster than anything can be: something was measured wrong."""


@dataclass(frozen=True)
class Summary:
    """A method in a cell. ``jobs`` are those that count, ``tried`` all; ``note``: why there are none."""

    method: str
    jobs: Sequence[JobRow]
    tried: int
    note: str

    @cached_property
    def time(self) -> Interval:
        """ms per iteration."""
        return of_median([job.time_ms for job in self.jobs if job.time_ms is not None])

    @property
    def ratio(self) -> Optional[float]:
        """The time over the bound; None without one."""
        bound = self.jobs[0].bound_ms
        return None if bound is None else self.time.median / bound

    @property
    def wrong(self) -> int:
        return sum(job.wrong for job in self.jobs)

    def speed_against(self, other: "Summary") -> Optional[Interval]:
        """How many times as fast as ``other`` this is: the other's time over this one's, of the jobs of a round. None without any."""
        mine, theirs = ({job.round: job.time_ms for job in each.jobs} for each in (self, other))
        rounds = sorted({*mine, *theirs})
        return of_paired_ratio([theirs.get(each) for each in rounds], [mine.get(each) for each in rounds])


class CellSummary(NamedTuple):
    """A cell with all of its methods. ``kind`` as in :class:`JobRow`; ``first``: a job that says what the cell is, None if none ran."""

    cell: str
    kind: str
    methods: Dict[str, Summary]
    first: Optional[JobRow]

    @property
    def ours(self) -> Summary:
        """What the others are compared with: prophet, or scheduled, or else the first method."""
        return self.methods[next((name for name in OURS if name in self.methods), next(iter(self.methods)))]


def summarise(rows: Sequence[JobRow], methods: Sequence[str], cells: Sequence[str] = ()) -> List[CellSummary]:
    """A summary of each cell, with ``methods`` in their order and further ones behind them. Those that have no job that counts say why,
    and so does a cell of ``cells`` without a row.

    Raises
    ------
    BelowBoundError
        a method took less time than the bound; the message says what that was computed from.
    """
    found = [_summary(cell, kind, mine, methods) for (cell, kind), mine in by_cell(rows).items()]
    ran = {each.cell for each in found}
    found += [CellSummary(cell, "", {}, None) for cell in cells if cell not in ran]
    for cell in found:
        for summary in cell.methods.values():
            if summary.jobs:
                _check_bound(cell, summary)
    return found


def _summary(cell: str, kind: str, rows: Sequence[JobRow], methods: Sequence[str]) -> CellSummary:
    summaries = {}
    for method in dict.fromkeys([*methods, *(row.method for row in rows)]):
        mine = [row for row in rows if row.method == method]
        jobs = [row for row in mine if not row.aside and row.time_ms is not None]
        note = "" if jobs else next((row.aside.splitlines()[0] for row in mine if row.aside), LEFT_OUT)
        summaries[method] = Summary(method, jobs, len(mine), note)
    first = next((row for row in rows if row.time_ms is not None), None)
    return CellSummary(cell, kind, summaries, first)


def _check_bound(cell: CellSummary, summary: Summary) -> None:
    ratio, job = summary.ratio, summary.jobs[0]
    if ratio is None or round(ratio, 3) >= 1:
        return
    shares = [each.goodput_share for each in summary.jobs if each.goodput_share is not None]
    raise BelowBoundError(
        f"{cell.cell}: {summary.method} took {ratio:.3f} of the bound, and nothing can be faster than the bound. That is "
        f"{job.bound_ms:g} ms, computed from {job.compute_ms:g} ms of compute on the slowest worker or more, and links that carried "
        f"{job.goodput_gbit:g} Gbit/s ({min(shares, default=0):.1%} of their rate, at the least) before the jobs. "
        "Either the links carried more during the jobs, or less was computed: measure the cell again"
    )
