"""From ready times to averages and steps: numbers in, numbers out.

A *sample* is one iteration's ready times by gradient index, seconds on any clock, None for a gradient that was not ready in
that iteration (a bucketing job does not use every parameter every time).
"""

import math
from numbers import Real
from statistics import median
from typing import Any, Iterable, List, Optional, Sequence, Tuple

from ..config import shown
from ..errors import ProfileError

Times = Sequence[Optional[float]]

_TO_DEVIATION = 1.4826  # the median absolute deviation of normal noise, times this, is its standard deviation


def finite(value: Any) -> Optional[float]:
    """``value`` as a float if it is a finite real number, else None; a truth value is not a number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def detect_steps(ready_times: Times) -> Tuple[Tuple[int, ...], ...]:
    """The gradients grouped into the steps in which they become ready, earliest step first, most urgent first within a step.

    In order of ready time, a gap larger than twice the mean gap starts a new step (Prophet, ICPP 2021). So evenly spaced
    gradients, and any two, are one step. A gradient without a ready time joins the step of the nearest more urgent gradient
    that has one, which backward reaches later, or else of the nearest less urgent one.

    Raises ProfileError if no gradient has a ready time, or one is not a finite number.

    >>> detect_steps([0.31, 0.30, 0.02, 0.01, 0.0])
    ((2, 3, 4), (0, 1))
    """
    times = filled(checked(ready_times))
    order = sorted(range(len(times)), key=lambda index: (times[index], index))
    mean_gap = (times[order[-1]] - times[order[0]]) / max(1, len(order) - 1)
    steps: List[List[int]] = []
    for place, index in enumerate(order):
        if not steps or times[index] - times[order[place - 1]] > 2 * mean_gap:
            steps.append([])
        steps[-1].append(index)
    return tuple(tuple(sorted(step)) for step in steps)


def average_iterations(samples: Iterable[Times]) -> Tuple[List[Optional[float]], List[Optional[float]]]:
    """Median ready time and spread per gradient over some iterations: ``(ready, spread)``, seconds.

    Times are relative to the first ready gradient; both are None for a gradient that no sample has. Spread is the standard
    deviation as the median deviation tells it, so that one odd iteration in three changes little. The iterations are laid
    over each other by their common gradients, not by each one's first: the first may be missing or late.

    Raises ProfileError if there are no samples, or they differ in length, or hold no times.
    """
    rows = [checked(sample) for sample in listed(samples, "samples")]
    if not rows or len({len(row) for row in rows}) > 1:
        raise ProfileError(
            f"samples are one or more iterations with the same number of gradients, not of {sorted({len(row) for row in rows})}"
        )
    reference = max(rows, key=lambda row: sum(time is not None for time in row))
    rows = [aligned(row, reference) for row in rows]
    ready: List[Optional[float]] = []
    spread: List[Optional[float]] = []
    for column in zip(*rows):
        seen = [time for time in column if time is not None]
        middle = median(seen) if seen else None
        ready.append(middle)
        spread.append(_TO_DEVIATION * median(abs(time - middle) for time in seen) if seen else None)
    return from_zero(ready), spread


def move_towards(ready: Times, spread: Times, sample: Times, weight: float) -> Tuple[List[Optional[float]], List[Optional[float]]]:
    """``(ready, spread)`` moved towards one more sample by ``weight``, each gradient by at most ``weight`` times three times
    its spread: one odd iteration changes little, and when the odd becomes usual the spread grows and the times follow.
    """
    new_ready, new_spread = list(ready), list(spread)
    row = aligned(checked(sample), ready)
    known = [time for time in list(ready) + row if time is not None]
    # Without a floor under the spread, the average of identical iterations could never move again.
    floor = 0.01 * (max(known) - min(known))
    for index, (old, new) in enumerate(zip(ready, row)):
        if new is None:
            continue
        if old is None:
            new_ready[index], new_spread[index] = new, 0.0
            continue
        usual = spread[index] or 0.0
        limit = 3 * max(usual, floor)
        move = max(-limit, min(limit, new - old))
        new_ready[index] = old + weight * move
        # The mean absolute deviation of normal noise, times sqrt(pi / 2), is its standard deviation.
        new_spread[index] = (1 - weight) * usual + weight * math.sqrt(math.pi / 2) * abs(move)
    return from_zero(new_ready), new_spread


def checked(sample: Times) -> List[Optional[float]]:
    """The times of a sample as floats; ProfileError if there is none, or one is not a finite number."""
    values = listed(sample, "the ready times of an iteration")
    times = [None if time is None else finite(time) for time in values]
    for given, time in zip(values, times):
        if given is not None and time is None:
            raise ProfileError(f"a ready time is a finite number of seconds, not {shown(given):.80}")
    if all(time is None for time in times):
        raise ProfileError("an iteration has no ready time")
    return times


def listed(values: Any, what: str) -> List[Any]:
    """Any iterable but a text as a list; ProfileError if it is none."""
    try:
        if isinstance(values, (str, bytes)):
            raise TypeError
        return list(values)
    except TypeError:
        raise ProfileError(f"{what} are a list, not {shown(values):.80}") from None


def aligned(sample: List[Optional[float]], reference: Times) -> List[Optional[float]]:
    """A sample moved in time by what most of its gradients differ from the reference; to start at 0 if none is common."""
    shifts = [old - new for old, new in zip(reference, sample) if old is not None and new is not None]
    shift = median(shifts) if shifts else -min(time for time in sample if time is not None)
    return [None if time is None else time + shift for time in sample]


def from_zero(times: Times) -> List[Optional[float]]:
    """Times moved so that the earliest is 0."""
    start = min(time for time in times if time is not None)
    return [None if time is None else time - start for time in times]


def filled(times: Times) -> List[float]:
    """Times with each None replaced by that of the nearest more urgent gradient, or else of the nearest less urgent one."""
    result: List[Optional[float]] = list(times)
    last = None
    for index, time in enumerate(result):
        last = result[index] = last if time is None else time
    first = next(time for time in result if time is not None)
    return [first if time is None else time for time in result]
