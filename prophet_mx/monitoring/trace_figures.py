"""What a trace says about a job, in numbers: pure functions of a :class:`~prophet_mx.monitoring.trace.Trace`. Times are seconds.

How an iteration is split up. It lasts from its first ready gradient to the next iteration's first ready gradient. In that time there
is one backward, which makes gradients, and one forward, which needs values; what a worker computes is not recorded, but when it can is:

=========== ========================================== =====================================================================
part         from, to                                   meaning
=========== ========================================== =====================================================================
backward     first ready gradient, last one             gradients are made, and sent meanwhile
stalled      last gradient, first layer's values        the next forward cannot begin: nothing is computed
arriving     first layer's values, last layer's values  forward goes on as far as values have come
compute      last layer's values, next first gradient   the rest of forward and the beginning of backward; nothing to send
=========== ========================================== =====================================================================
"""

import statistics
from collections import Counter
from dataclasses import dataclass
from typing import Callable, Dict, Iterable, List, Sequence, Tuple, TypeVar

from ..errors import TraceError
from .trace import Trace
from .trace_file import STAGES

T = TypeVar("T")
PARTS = ("backward", "stalled", "arriving", "compute")
BINS = 120  # of the utilisation over an iteration


@dataclass(frozen=True)
class Iteration:
    """One iteration: ``parts`` by the names of PARTS, which add up to its length; ``first_layer`` by the stages of the first layer's last
    unit, from ready to in the caller's array; ``utilisation`` is the share of the time in which the links carried bytes, ``bytes`` what it
    sent, ``idle`` the time in which there was nothing to send; ``ahead`` are the bytes that were sent and not answered when the first
    layer's gradient became ready: what was in front of it."""

    number: int
    begin: float
    end: float
    last_ready: float
    first_there: float
    parts: Dict[str, float]
    first_layer: Dict[str, float]
    utilisation: float
    bytes: int
    idle: float
    ahead: int

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.begin

    @property
    def computing(self) -> float:
        """How long the worker had all that it needed: the least that it computed. While values arrive it may compute or wait."""
        return self.parts["backward"] + self.parts["compute"]

    @property
    def first_ready(self) -> float:
        """When the first layer's last unit became ready."""
        return self.first_there - sum(self.first_layer.values())

    @property
    def arriving(self) -> Tuple[float, float]:
        """When its values arrived: from the first layer's to the last one's."""
        begin = self.begin + self.parts["backward"] + self.parts["stalled"]
        return begin, begin + self.parts["arriving"]


@dataclass(frozen=True)
class TracedStep:
    """A step of the pattern: when it begins after the iteration's first ready gradient, how long it takes, its units and bytes."""

    begin: float
    seconds: float
    units: int
    bytes: int


@dataclass(frozen=True)
class Figures:
    """What the report shows of a trace. ``iterations`` are the whole ones in which the step pattern was known, if there are any, else
    all whole ones but the first; ``median`` is the one of median length. Other figures are means over ``usual``, which are those without
    the quarter of the longest and the quarter of the shortest ones: means of the same iterations add up as their parts do, which medians do
    not."""

    trace: Trace
    iterations: List[Iteration]
    usual: List[Iteration]
    median: Iteration
    steps: List[TracedStep]
    first_parameter: str

    @property
    def rate(self) -> float:
        """The links' last known rates added up (bytes/s), 0 if none is known."""
        return sum(self.trace.rates.values())

    def middle(self, value: Callable[[Iteration], float]) -> float:
        """The mean of a value over the usual iterations."""
        return statistics.fmean(map(value, self.usual))

    @property
    def seconds(self) -> float:
        """The time of a usual iteration."""
        return self.middle(lambda iteration: iteration.seconds)

    @property
    def utilisation(self) -> float:
        """The share of the time in which the links carried bytes."""
        return self.middle(lambda iteration: iteration.utilisation)

    @property
    def computing(self) -> float:
        """The time of an iteration in which the worker has all that it needs: the least that it computes. It is longest on the worker that
        the others wait for."""
        return self.middle(lambda iteration: iteration.computing)

    def part(self, name: str) -> float:
        """How long a part takes."""
        return self.middle(lambda iteration: iteration.parts[name])

    def first_wait(self, name: str) -> float:
        """How long one stage of the first layer takes, or its 'total'."""
        if name == "total":
            return self.middle(lambda iteration: sum(iteration.first_layer.values()))
        return self.middle(lambda iteration: iteration.first_layer[name])


def figures(trace: Trace) -> Figures:
    """The figures of a trace.

    Raises TraceError if it holds no whole iteration, or its iterations take no time.
    """
    if not trace.units:
        raise TraceError(f"{trace.path}: shows no units: the job ended before its first gradient")
    first = first_parameter(trace)
    whole = _whole(trace)
    known = [number for number in whole if all(passage.step >= 0 for passage in trace.passages[number].values())]
    chosen = known or whole[1:] or whole
    if not chosen:
        raise TraceError(f"{trace.path}: shows no whole iteration; let the job run longer, or give it a higher PROPHET_TIMELINE_LIMIT")
    iterations = [_iteration(trace, number, first) for number in chosen]
    middle = statistics.median_low([iteration.seconds for iteration in iterations])
    if middle <= 0:
        raise TraceError(f"{trace.path}: its iterations take no time: it is damaged")
    median = next(iteration for iteration in iterations if iteration.seconds == middle)
    ordered = inner(iterations, lambda iteration: iteration.seconds)
    return Figures(trace, iterations, ordered, median, _steps(trace, [iteration.number for iteration in iterations]), first)


def inner(values: Sequence[T], size: Callable[[T], float]) -> List[T]:
    """The values, in order of their sizes, without the quarter of the least and the quarter of the largest."""
    outer = len(values) // 4
    return sorted(values, key=size)[outer : len(values) - outer]


def first_parameter(trace: Trace) -> str:
    """The parameter that the next forward needs first."""
    return min(trace.units.values(), key=lambda unit: unit.urgency).parameter


def _whole(trace: Trace) -> List[int]:
    """The iterations of which everything was recorded: with an end, and as many units as most have."""
    sizes = {
        number: len(passages)
        for number, passages in trace.passages.items()
        if number in trace.iterations and all(passage.complete for passage in passages.values())
    }
    if not sizes:
        return []
    usual = _usual(sizes.values())
    return sorted(number for number, size in sizes.items() if size == usual)


def _usual(counts: Iterable[int]) -> int:
    """The one that is there most often, and of several the largest."""
    return max(Counter(counts).items(), key=lambda item: (item[1], item[0]))[0]


def _iteration(trace: Trace, number: int, first: str) -> Iteration:
    begin, end = trace.iterations[number]
    passages = trace.passages[number]
    layer = [passage for unit, passage in passages.items() if trace.units[unit].parameter == first] or list(passages.values())
    slowest = max(layer, key=lambda passage: passage.landed)
    last_ready = min(end, max(passage.ready for passage in passages.values()))
    first_there = min(end, max(last_ready, slowest.landed))
    all_there = min(end, max(first_there, max(passage.landed for passage in passages.values())))
    waits = [slowest.ready, slowest.released, slowest.drained, slowest.answered, slowest.landed]
    lengths = (last_ready - begin, first_there - last_ready, all_there - first_there, end - all_there)
    links = _links(trace)
    busy = sum(max(0.0, min(end, to) - max(begin, at)) for _, at, to in wires_between(trace, number))
    return Iteration(
        number,
        begin,
        end,
        last_ready,
        slowest.landed,
        dict(zip(PARTS, lengths)),
        {stage: to - at for stage, at, to in zip(STAGES, waits, waits[1:])},
        min(1.0, busy / links / max(1e-9, end - begin)),
        sum(trace.units[unit].bytes for unit in passages),
        sum(max(0.0, min(end, to) - max(begin, at)) for at, to in trace.gaps),
        sum(trace.units[unit].bytes for unit, passage in passages.items() if passage.released < slowest.ready < passage.answered),
    )


def _links(trace: Trace) -> int:
    servers: int = trace.head.get("servers", 1)
    return max(1, servers)


def wires_between(trace: Trace, number: int) -> List[Tuple[int, float, float]]:
    """When a link carried units, in the time of an iteration: some may be of the one before."""
    begin, end = trace.iterations[number]
    return [wire for near in (number - 1, number, number + 1) for wire in trace.wires.get(near, []) if wire[2] > begin and wire[1] < end]


def busy_shares(trace: Trace, iteration: Iteration, bins: int = BINS) -> List[float]:
    """How much of each of ``bins`` equal parts of an iteration the links carried bytes, 0 to 1."""
    links = _links(trace)
    width = iteration.seconds / bins
    shares = [0.0] * bins
    for _, begin, end in wires_between(trace, iteration.number):
        at, to = max(0.0, begin - iteration.begin), min(iteration.seconds, end - iteration.begin)
        for place in range(int(at / width), min(bins - 1, int(to / width)) + 1):
            shares[place] += max(0.0, min(to, (place + 1) * width) - max(at, place * width)) / width / links
    return [min(1.0, share) for share in shares]


def _steps(trace: Trace, numbers: Sequence[int]) -> List[TracedStep]:
    """The step pattern: medians over the iterations that have the usual number of steps."""
    usual = _usual(len(trace.steps.get(number, [])) for number in numbers)
    alike = [number for number in numbers if len(trace.steps.get(number, [])) == usual and usual]
    rows, starts = [sorted(trace.steps[number]) for number in alike], [trace.iterations[number][0] for number in alike]
    steps = []
    for place in range(usual if rows else 0):
        column = [row[place] for row in rows]
        steps.append(
            TracedStep(
                statistics.median(begin - start for (_, begin, _, _, _), start in zip(column, starts)),
                statistics.median(end - begin for _, begin, end, _, _ in column),
                int(statistics.median(units for *_, units, _ in column)),
                int(statistics.median(size for *_, size in column)),
            )
        )
    return steps
