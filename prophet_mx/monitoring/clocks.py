"""One clock for the traces of a job, each of which begins its own. Pure; times are seconds.

A server answers a unit when it has the parts of all workers, and answers all workers then. So an answer is the same moment in all traces,
but for how long the reply takes to each worker. Clocks are compared by the answers to the same unit in the same iteration: shift and drift
are those of a line through the differences that outliers do not bend.

How wrong that can be: half of the answers agree within ``accuracy``. Single answers differ more. A server that always replies to
the same worker first makes that worker's clock wrong by the time of a reply.
"""

import statistics
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

from .trace import Trace

FEWEST = 30  # answers from which the drift is told
SPAN = 60.0  # seconds that they span then: in less time clocks do not drift by what could be seen


@dataclass(frozen=True)
class Clock:
    """Turns a trace's times into those of the first trace."""

    shift: float = 0.0
    drift: float = 0.0

    def common(self, time: float) -> float:
        """A time of the trace on the common clock."""
        return time + self.shift + self.drift * time


@dataclass(frozen=True)
class Clocks:
    """The clocks of some traces, in their order; half of the answers agree within ``accuracy``."""

    each: List[Clock]
    accuracy: float


def common_clock(traces: Sequence[Trace]) -> Optional[Clocks]:
    """The clocks of the traces of one job; None if two of them have no answer in common."""
    if not traces:
        return None
    first = _answers(traces[0])
    clocks, agreements = [Clock()], [0.0]
    for trace in traces[1:]:
        own = _answers(trace)
        pairs = sorted((time, first[answer] - time) for answer, time in own.items() if answer in first)
        if not pairs:
            return None
        clock = _line(pairs)
        clocks.append(clock)
        agreements.append(statistics.median(abs(time + ahead - clock.common(time)) for time, ahead in pairs))
    return Clocks(clocks, max(agreements))


def _answers(trace: Trace) -> Dict[Tuple[int, str], float]:
    """When each unit of each iteration was answered."""
    units = trace.units
    return {
        (number, units[unit].name): passage.answered
        for number, passages in trace.passages.items()
        for unit, passage in passages.items()
        if passage.complete
    }


def _line(pairs: Sequence[Tuple[float, float]]) -> Clock:
    """The line through (time, difference), in order of time: its slope is that between the medians of the first third and of the last."""
    third, drift = len(pairs) // 3, 0.0
    if len(pairs) >= FEWEST and pairs[-1][0] - pairs[0][0] >= SPAN:
        (left, low), (right, high) = (tuple(map(statistics.median, zip(*part))) for part in (pairs[:third], pairs[-third:]))
        drift = (high - low) / (right - left) if right > left else 0.0
    return Clock(statistics.median(ahead - drift * time for time, ahead in pairs), drift)
