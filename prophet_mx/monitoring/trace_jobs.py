"""The jobs that traces are of: which workers belong together, which of them are slow, and the least time that the job could take. Pure;
times are seconds. A worker that all others wait for computes longer and stalls less than they do.
"""

import os
import statistics
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Callable, Dict, List, Sequence, Tuple

from ..errors import ConfigError
from ..planning.bound import lower_bound
from ..profiling.compute_times import with_compute
from ..profiling.gradient_profile import Gradient, GradientProfile
from .trace import Trace
from .trace_figures import Figures, Iteration

SLOW = 1.1  # a straggler computes for this many times as long as most of the others,
DELAYS = 0.04  # and longer by at least this share of an iteration
LABELS = ("before", "after")  # of two jobs, which are the most that a report compares


@dataclass(frozen=True)
class TracedJob:
    """The workers of one job whose traces are here, in the order of their files; ``name`` is that of the files, ``label`` what the job is
    called where there are two: before, or after."""

    name: str
    workers: List[Figures]
    label: str = ""

    @property
    def seconds(self) -> float:
        """The time of an iteration: the median over the workers."""
        return self.middle(lambda worker: worker.seconds)

    @cached_property
    def bound(self) -> float:
        """The least time of an iteration: the longest of the workers' own, as each waits for all."""
        return min(self.seconds, max(map(least_seconds, self.workers)))

    @property
    def stalls(self) -> Tuple[float, float]:
        """The least and the longest time stalled in an iteration, among the workers."""
        stalls = [worker.part("stalled") for worker in self.workers]
        return min(stalls), max(stalls)

    @cached_property
    def slowest(self) -> Figures:
        """The worker that computes longest."""
        return max(self.workers, key=lambda worker: worker.computing)

    @cached_property
    def stragglers(self) -> List[Figures]:
        """The workers that compute longer than most of the others."""
        usual = self._usual
        return [worker for worker in self.workers if worker.computing > max(SLOW * usual, usual + DELAYS * self.seconds)]

    @property
    def delay(self) -> float:
        """How many times as long as most of the others the slowest worker computes."""
        return self.slowest.computing / self._usual if self._usual else 1.0

    @property
    def _usual(self) -> float:
        """How long most of the workers compute."""
        return statistics.median_low([worker.computing for worker in self.workers])

    def middle(self, value: Callable[[Figures], float]) -> float:
        """The median of a value over the workers."""
        return statistics.median([value(worker) for worker in self.workers])


def rank_of(figures: Figures) -> str:
    """A worker's name: its rank in the job, as its trace says."""
    return f"worker {figures.trace.head.get('rank')}"


def jobs(all_figures: Sequence[Figures]) -> List[TracedJob]:
    """The jobs of some traces. A trace belongs to the job of the one before it if policy and machines are the same and the rank is new.

    Raises ConfigError if they are traces of more than two jobs.
    """
    groups: List[List[Figures]] = []
    seen: Dict[str, List[str]] = {}  # of the latest job: its facts -> its ranks
    for figures in all_figures:
        facts, rank = repr([figures.trace.head.get(fact) for fact in ("policy", "workers", "servers")]), rank_of(figures)
        if rank in seen.get(facts, [rank]):
            groups.append([])
            seen = {facts: []}
        groups[-1].append(figures)
        seen[facts].append(rank)
    if len(groups) > len(LABELS):
        raise ConfigError(f"these are traces of {len(groups)} jobs; allowed: those of one job, or of two jobs to compare")
    names = [_name([os.path.basename(figures.trace.path) for figures in group]) for group in groups]
    if len(set(names)) < len(names):
        names = [_name([figures.trace.path for figures in group]) for group in groups]
    return [TracedJob(name, group, label) for name, group, label in zip(names, groups, LABELS if len(groups) > 1 else ("",))]


def _name(names: Sequence[str]) -> str:
    """What the names of a job's files have in common."""
    if len(names) == 1:
        return names[0]
    begin = os.path.commonprefix(names)  # noqa: RUF071  of the names' letters
    end = os.path.commonprefix([name[len(begin) :][::-1] for name in names])[::-1]  # noqa: RUF071
    return f"{begin}*{end}"


def least_seconds(figures: Figures) -> float:
    """The lower bound of a worker's iteration, from its own sizes, ready times and measured rate: what no order of sending beats. How much
    of forward a worker does while values arrive is not known; none of it is counted, so that the bound is rather too low than too high."""
    profile, rate, compute = _profile(figures), _rate(figures), figures.computing
    if compute <= profile.step_times()[-1] or rate <= 0:
        return figures.seconds
    return min(figures.seconds, lower_bound(with_compute(profile, compute), rate))


def _profile(figures: Figures) -> GradientProfile:
    """The job's profile as the trace shows it: parameters, most urgent first, with the medians of the times at which they became ready,
    each a step of its own."""
    trace = figures.trace
    units: Dict[str, List[int]] = {}
    for unit, facts in sorted(trace.units.items(), key=lambda item: item[1].urgency):
        units.setdefault(facts.parameter, []).append(unit)
    sizes = [max(1, sum(trace.units[unit].bytes for unit in own)) for own in units.values()]
    ready = [figures.middle(partial(_last_ready, trace, own)) for own in units.values()]
    gradients = [Gradient(name, size, ready=time) for name, size, time in zip(units, sizes, ready)]
    return GradientProfile("trace", tuple(gradients), tuple((index,) for index in sorted(range(len(ready)), key=ready.__getitem__)))


def _last_ready(trace: Trace, units: Sequence[int], iteration: Iteration) -> float:
    """Seconds from the beginning of an iteration to when the last of these units became ready."""
    passages = trace.passages[iteration.number]
    return max([passages[unit].ready - iteration.begin for unit in units if unit in passages] + [0.0])


def _rate(figures: Figures) -> float:
    """Bytes/s of the worker's links together: as measured, or what they carried while they were busy."""
    busy = figures.utilisation * figures.seconds
    return figures.rate or (figures.middle(lambda iteration: iteration.bytes) / busy if busy else 0.0)
