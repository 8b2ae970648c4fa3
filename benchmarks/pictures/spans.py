"""One recorded iteration as spans of time, for the pictures. Pure; needs no matplotlib. Times: seconds from the start of backward.

What a worker computes is what its accelerator has told. What its link carries are the bytes that the link has counted, about each
millisecond, in each direction. Which gradients these were follows from the order in which they were sent, and came back. Pauses of under
5 ms are not shown: the workers take turns on the link of their server.
"""

from itertools import accumulate
from typing import List, NamedTuple, Sequence, Tuple

from prophet_mx.profiling.gradient_profile import GradientProfile

TOUCHING = 1e-6  # seconds: spans that are nearer to each other have no gap
TURN = 5e-3  # seconds: a link that is quiet for less carries another worker's bytes meanwhile
QUIET = 0.02  # of its rate: what a link carries while it carries acknowledgements only


class Span(NamedTuple):
    """From when to when, and which gradient (index in forward order)."""

    begin: float
    end: float
    gradient: int


class Operation(NamedTuple):
    """What an accelerator did: from when to when, in which iteration, and which operation, see benchmarks/testbed/emulated.py."""

    iteration: int
    backward: bool
    place: int
    begin: float
    end: float


class Count(NamedTuple):
    """Bytes that a worker's link has carried up to a moment, from and to it."""

    at: float
    sent: int
    received: int


class DrawnIteration(NamedTuple):
    """What one worker does in an iteration of ``seconds``: ``backward`` a span per step, and ``forward`` one per operation, each with its
    first gradient; ``sends`` and ``receives`` when its link carries which; ``first_layer`` when the first layer's values are back."""

    seconds: float
    backward: List[Span]
    forward: List[Span]
    sends: List[Span]
    receives: List[Span]
    first_layer: float

    @property
    def stalls(self) -> List[Tuple[float, float]]:
        """The times in which it computes nothing."""
        ends = [0.0, *(span.end for span in (*self.backward, *self.forward))]
        begins = [*(span.begin for span in (*self.backward, *self.forward)), self.seconds]
        return [(end, begin) for end, begin in zip(ends, begins) if begin - end > TOUCHING]

    @property
    def stalled(self) -> float:
        """Seconds in which it computes nothing."""
        return sum(end - begin for begin, end in self.stalls)


def lengths(operations: Sequence[Operation], first: int) -> List[Tuple[float, int]]:
    """The seconds of each whole iteration from number ``first`` on, and its number: from the start of backward to that of the next."""
    begins = {each.iteration: each.begin for each in operations if each.backward and each.place == 0}
    return [(begins[number + 1] - begins[number], number) for number in sorted(begins) if number >= first and number + 1 in begins]


def of_median(found: Sequence[Tuple[float, int]]) -> int:
    """The number of the iteration of median length."""
    return sorted(found)[len(found) // 2][1]


def computed(operations: Sequence[Operation], number: int, steps: Sequence[int], layers: Sequence[int]) -> Tuple[List[Span], List[Span]]:
    """The backward of an iteration and the forward after it, on the clock of the operations. ``steps`` and ``layers``: the first gradient
    of each operation."""
    backward = [Span(each.begin, each.end, steps[each.place]) for each in operations if each.backward and each.iteration == number]
    forward = [Span(each.begin, each.end, layers[each.place]) for each in operations if not each.backward and each.iteration == number + 1]
    return backward, forward


def plain_order(profile: GradientProfile, places: Sequence[int]) -> List[Tuple[int, int]]:
    """In which order plain ``dist_sync`` sends gradients, each with its bytes: as they become ready, and those of a step as they were
    pushed. ``places``: of each gradient, in the order of the pushes."""
    ready = profile.backward_ready_times()
    steps = sorted(profile.steps, key=lambda step: ready[step[0]])
    order = [index for step in steps for index in sorted(step, key=lambda index: places[index])]
    return [(index, profile.gradients[index].bytes) for index in order]


def carried(counts: Sequence[Tuple[float, int]], order: Sequence[Tuple[int, int]], rate: float) -> List[Span]:
    """When a link of ``rate`` bytes/s carried what, by the bytes that it had counted at some moments, and the gradients and their bytes in
    the ``order`` in which they were carried. All that it carried beside payload is spread evenly over them."""
    busy = [
        (begin, end, after - before)
        for (begin, before), (end, after) in zip(counts, counts[1:])
        if after - before > QUIET * rate * (end - begin)
    ]
    share = sum(size for *_, size in busy) / max(1, sum(size for _, size in order))
    ends = [share * end for end in accumulate(size for _, size in order)]
    spans: List[Span] = []
    unit, done = 0, 0.0
    for begin, end, size in busy:
        at, upto = begin, done + size
        while unit < len(order) and at < end - TOUCHING:
            until = min(end, begin + (end - begin) * (ends[unit] - done) / size)
            if until > at:
                _extend(spans, Span(at, until, order[unit][0]))
                at = until
            if ends[unit] <= upto:
                unit += 1
        done = upto
    return spans


def _extend(spans: List[Span], span: Span) -> None:
    """Append a span, after which there is no pause of less than a TURN, and no two spans of one gradient without a pause."""
    if spans and span.begin - spans[-1].end < TURN:
        last = spans.pop()
        if last.gradient == span.gradient:
            span = span._replace(begin=last.begin)
        else:
            spans.append(last._replace(end=span.begin))
    spans.append(span)


def since(spans: Sequence[Span], begin: float) -> List[Span]:
    """The same spans, as seconds after ``begin``."""
    return [Span(span.begin - begin, span.end - begin, span.gradient) for span in spans]
