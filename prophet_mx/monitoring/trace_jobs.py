"""The jobs that traces are of: which workers belong together, which of them are slow, and the least time that the job could take. Pure;
times are seconds. A worker that all others wait for computes longer and stalls less than they do.

What is left to gain. An iteration is split up as in :mod:`~prophet_mx.monitoring.trace_figures`. While values arrive, forward computes or
waits, and which of the two is not recorded. But it can wait for the network only while the network has something to do: on any worker,
a unit of this iteration waits to be sent, or is on a wire, or its answer is. That time is ``waiting``. The rest of *arriving* is computing,
of this worker or of what it waits for, and no order of sending shortens it:

    computing = seconds - stalled - waiting
    bound     = lower_bound(a profile that computes for so long) >= computing
    gain      = seconds - bound <= stalled + waiting

So a gain is always part of the stall and of waits that the trace shows. All terms are means over the same iterations, and the identity is
one of each of them. A job gains what the worker gains that gains least, as all take the same time.
"""

import os
import statistics
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

from ..errors import ConfigError
from ..planning.bound import lower_bound
from ..profiling.compute_times import with_compute
from ..profiling.gradient_profile import Gradient, GradientProfile
from .clocks import Clocks, common_clock
from .trace import Trace
from .trace_figures import Figures, Iteration, inner

SLOW = 1.1  # a straggler computes for this many times as long as most of the others,
DELAYS = 0.04  # and longer by at least this share of an iteration,
OFTEN = 0.75  # and longer than most in this share of the iterations
LABELS = ("before", "after")  # of two jobs, which are the most that a report compares


@dataclass(frozen=True)
class TracedJob:
    """The workers of one job whose traces are here, in the order of their files, with figures of the same iterations where they have such;
    ``name`` is that of the files, ``label`` what the job is called where there are two: before, or after. ``before`` is the other one then,
    if both send the same."""

    name: str
    workers: List[Figures]
    label: str = ""
    before: Optional["TracedJob"] = None

    @property
    def seconds(self) -> float:
        """The time of an iteration: the median over the workers."""
        return self.middle(lambda worker: worker.seconds)

    @cached_property
    def gain(self) -> float:
        """The most that an iteration could be shorter by another order of sending."""
        return max(0.0, min(worker.seconds - least_seconds(worker, self.least_computing(worker)) for worker in self.workers))

    @property
    def bound(self) -> float:
        """The least time of an iteration."""
        return self.seconds - self.gain

    def waiting(self, worker: Figures) -> float:
        """How long a worker's forward may wait for the network while values arrive."""
        place = next(place for place, one in enumerate(self.workers) if one is worker)
        return worker.middle(lambda iteration: self._at_work(place, iteration))

    def least_computing(self, worker: Figures) -> float:
        """How long a worker computes at least: as long as the network does not keep it from computing; and as long as in the job that
        this one is compared with, whose values may have come all at once."""
        own = worker.seconds - worker.part("stalled") - self.waiting(worker)
        return max(own, min(worker.seconds, self.before.computing)) if self.before else own

    @cached_property
    def computing(self) -> float:
        """How long every worker computes at least."""
        return min(map(self.least_computing, self.workers))

    @property
    def communicating(self) -> float:
        """How long the links need for the bytes of an iteration: the longest of the workers' own times, 0 if no rate is known."""
        return max(_bytes(worker) / _rate(worker) if _rate(worker) else 0.0 for worker in self.workers)

    @property
    def complete(self) -> bool:
        """Whether the traces of all workers are here."""
        return len(self.workers) == self.workers[0].trace.head.get("workers")

    @cached_property
    def clocks(self) -> Optional[Clocks]:
        """The workers' clocks; None if nothing in the traces says how they differ."""
        return common_clock([worker.trace for worker in self.workers])

    @cached_property
    def together(self) -> List[Iteration]:
        """The same iteration of each worker, as usual as can be; empty if none was recorded on all of them, or not on one clock."""
        shared = _shared(self.workers)
        if len(self.workers) == 1 or self.clocks is None or not shared:
            return []
        return [each[shared[len(shared) // 2]] for each in _numbered(self.workers)]

    def _at_work(self, place: int, iteration: Iteration) -> float:
        """How long the network had something to do while a worker's values arrived."""
        begin, end = iteration.arriving
        busy = self._busy(iteration.number)
        if busy is None or self.clocks is None:  # an answer may wait for the network of a worker whose trace is not here
            passages = self.workers[place].trace.passages[iteration.number].values()
            return overlap([(passage.ready, passage.answered) for passage in passages], begin, end)
        clock = self.clocks.each[place]
        return min(end - begin, overlap(busy, clock.common(begin), clock.common(end)))

    def _busy(self, number: int) -> Optional[List[Tuple[float, float]]]:
        """When the network had something to do for an iteration, on the common clock; None if not all workers' traces say."""
        if number not in self._network:
            clocks, network = self.clocks, []
            whole = self.complete and clocks is not None and all(number in worker.trace.passages for worker in self.workers)
            for worker, clock in zip(self.workers, clocks.each if whole and clocks else ()):
                network += [(clock.common(begin), clock.common(end)) for begin, end in at_work(worker.trace, number, _rate(worker))]
            self._network[number] = united(network) if whole else None
        return self._network[number]

    @cached_property
    def _network(self) -> Dict[int, Optional[List[Tuple[float, float]]]]:
        return {}

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
        """The workers that compute longer than most of the others, and do so in most iterations: one pause makes no straggler."""
        usual = self._usual
        slow = [worker for worker in self.workers if worker.computing > max(SLOW * usual, usual + DELAYS * self.seconds)]
        return [worker for worker in slow if self._often(worker) >= OFTEN]

    def _often(self, worker: Figures) -> float:
        """The share of the iterations in which a worker computed longer than most of the others, 1 if no other one's are known."""
        others = _numbered(self.workers)
        later = [
            iteration.computing > statistics.median_low([each[iteration.number].computing for each in others])
            for iteration in worker.iterations
            if all(iteration.number in each for each in others)
        ]
        return statistics.fmean(later) if later else 1.0

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
    groups = list(map(_alike, groups))
    names = [_name([os.path.basename(figures.trace.path) for figures in group]) for group in groups]
    if len(set(names)) < len(names):
        names = [_name([figures.trace.path for figures in group]) for group in groups]
    if len(groups) < len(LABELS):
        return [TracedJob(name, group) for name, group in zip(names, groups)]
    before = TracedJob(names[0], groups[0], LABELS[0])
    alike = len({_bytes(figures) for figures in all_figures}) == 1
    return [before, TracedJob(names[1], groups[1], LABELS[1], before if alike else None)]


def _numbered(workers: Sequence[Figures]) -> List[Dict[int, Iteration]]:
    """The workers' iterations by number."""
    return [{iteration.number: iteration for iteration in worker.iterations} for worker in workers]


def _shared(workers: Sequence[Figures]) -> List[int]:
    """The numbers of the usual iterations among those that all workers have, by length."""
    found = _numbered(workers)
    numbers = [number for number in found[0] if all(number in each for each in found)]
    return inner(numbers, lambda number: statistics.fmean(each[number].seconds for each in found))


def _alike(workers: Sequence[Figures]) -> List[Figures]:
    """The workers with figures of the same iterations, if they have such: one iteration can take longer on one worker, and the next one
    longer on another, as each ends with a worker's own first gradient."""
    shared = _shared(workers)
    if not shared:
        return list(workers)
    return [replace(worker, usual=[each[number] for number in shared]) for worker, each in zip(workers, _numbered(workers))]


def _name(names: Sequence[str]) -> str:
    """What the names of a job's files have in common."""
    if len(names) == 1:
        return names[0]
    begin = os.path.commonprefix(names)  # noqa: RUF071  of the names' letters
    end = os.path.commonprefix([name[len(begin) :][::-1] for name in names])[::-1]  # noqa: RUF071
    return f"{begin}*{end}"


def least_seconds(figures: Figures, computing: float) -> float:
    """The lower bound of a worker's iteration, from its own sizes, ready times and measured rate, if it computes for so long: what no order
    of sending beats. It is at least ``computing``."""
    profile, rate, least = _profile(figures), _rate(figures), computing
    if rate > 0:
        possible = computing > profile.step_times()[-1]  # otherwise no time is left for a forward
        least = max(least, lower_bound(with_compute(profile, computing), rate) if possible else profile.total_bytes / rate)
    return min(figures.seconds, least)


def at_work(trace: Trace, number: int, rate: float) -> Iterator[Tuple[float, float]]:
    """When the network had something to do for an iteration: from when a unit was ready until it had drained, and then for as long as the
    links carry the replies, one after the other, at the same ``rate``."""
    replied = 0.0
    for passage in sorted(trace.passages[number].values(), key=lambda passage: passage.drained):
        if passage.complete:
            reply = trace.units[passage.unit].bytes / rate if rate > 0 else 0.0
            replied = max(replied, passage.drained) + reply
            yield passage.ready, min(passage.answered, replied)


def united(spans: Iterable[Tuple[float, float]]) -> List[Tuple[float, float]]:
    """The same times without overlaps, in order."""
    found: List[Tuple[float, float]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def overlap(spans: Iterable[Tuple[float, float]], begin: float, end: float) -> float:
    """How much of the time from ``begin`` to ``end`` is covered."""
    return sum(max(0.0, min(end, to) - max(begin, at)) for at, to in united(spans))


def _profile(figures: Figures) -> GradientProfile:
    """The job's profile as the trace shows it: parameters, most urgent first, with the means of the times at which they became ready,
    each a step of its own."""
    trace = figures.trace
    units: Dict[str, List[int]] = {}
    for unit, facts in sorted(trace.units.items(), key=lambda item: item[1].urgency):
        units.setdefault(facts.parameter, []).append(unit)
    sizes = [max(1, sum(trace.units[unit].bytes for unit in own)) for own in units.values()]
    times = [figures.middle(partial(_last_ready, trace, own)) for own in units.values()]
    ready = [time - min(times) for time in times]  # which one is first may differ from iteration to iteration
    gradients = [Gradient(name, size, ready=time) for name, size, time in zip(units, sizes, ready)]
    return GradientProfile("trace", tuple(gradients), tuple((index,) for index in sorted(range(len(ready)), key=ready.__getitem__)))


def _last_ready(trace: Trace, units: Sequence[int], iteration: Iteration) -> float:
    """Seconds from the beginning of an iteration to when the last of these units became ready."""
    passages = trace.passages[iteration.number]
    return max([passages[unit].ready - iteration.begin for unit in units if unit in passages] + [0.0])


def _rate(figures: Figures) -> float:
    """Bytes/s of the worker's links together: as measured, or what they carried while they were busy."""
    busy = figures.utilisation * figures.seconds
    return figures.rate or (_bytes(figures) / busy if busy else 0.0)


def _bytes(figures: Figures) -> float:
    """What the worker sends in an iteration."""
    return figures.middle(lambda iteration: iteration.bytes)
