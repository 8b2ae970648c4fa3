"""One simulated iteration as spans of time, for the pictures. Pure; needs no matplotlib. Times: seconds from the start of backward."""

from typing import List, NamedTuple, Tuple

from prophet_mx.profiling.gradient_profile import GradientProfile
from prophet_mx.simulation.simulator import Result

TOUCHING = 1e-9  # seconds: spans that are nearer to each other have no gap


class Span(NamedTuple):
    """From when to when, and which gradient (index in forward order)."""

    begin: float
    end: float
    gradient: int


class DrawnIteration(NamedTuple):
    """What one worker does in an iteration of ``seconds``: ``backward`` a span per step, with the step's first gradient; ``forward`` a span
    per layer; ``stalls`` the times in which it computes nothing; ``sends`` and ``receives`` when its link carries units."""

    seconds: float
    backward: List[Span]
    forward: List[Span]
    stalls: List[Tuple[float, float]]
    sends: List[Span]
    receives: List[Span]

    @property
    def stalled(self) -> float:
        """Seconds in which the worker computes nothing."""
        return sum(end - begin for begin, end in self.stalls)


def iteration(profile: GradientProfile, result: Result) -> DrawnIteration:
    """The last simulated iteration of the slowest worker."""
    timeline = result.workers[0].last
    forward = [Span(begin, end, index) for index, (begin, end) in enumerate(timeline.forward)]
    computing = [(0.0, timeline.backward), *((span.begin, span.end) for span in forward), (result.seconds, result.seconds)]
    stalls = [(end, begin) for (_, end), (begin, _) in zip(computing, computing[1:]) if begin - end > TOUCHING]
    return DrawnIteration(result.seconds, _steps(profile, timeline.backward), forward, stalls, *_traffic(result))


def _steps(profile: GradientProfile, end: float) -> List[Span]:
    """Backward, cut where a step's gradients become ready."""
    ready = profile.backward_ready_times()
    factor = end / max(ready) if max(ready) else 1.0  # a straggler's backward takes longer
    steps = sorted((ready[step[0]] * factor, min(step)) for step in profile.steps)
    begins = [0.0, *(at for at, _ in steps)]
    return [Span(begin, at, gradient) for begin, (at, gradient) in zip(begins, steps)]


def _traffic(result: Result) -> Tuple[List[Span], List[Span]]:
    """What the worker's link carries each way. A unit follows the one before it: it cannot have begun before that had ended."""
    times = result.workers[0].last.units
    units = range(len(result.units))
    sends: List[Span] = []
    free = 0.0
    for unit in sorted(units, key=lambda unit: times[unit].drained):
        sends.append(Span(max(free, times[unit].released), times[unit].drained, result.units[unit].gradient))
        free = times[unit].drained
    receives: List[Span] = []
    free = 0.0
    cluster = result.cluster
    share = cluster.bandwidth * min(1.0, cluster.servers / cluster.workers)
    for unit in sorted(units, key=lambda unit: times[unit].answered):
        begin = times[unit].answered - result.units[unit].bytes / share
        receives.append(Span(max(free, begin), times[unit].answered, result.units[unit].gradient))
        free = times[unit].answered
    return sends, receives
