"""What turns of two runs each show: a ratio with its interval at 95%, and how many turns a difference of its size would take.

A sample is a turn: the logarithm of the ratio of its two runs' times. What slows down a whole turn slows down both, and cancels out. A
difference is seen where Student's test of these samples (the paired t-test) is sure of it at 95%: of jobs that do not differ, one
comparison in twenty says that they do.
"""

import math
import statistics
from dataclasses import dataclass
from functools import lru_cache
from typing import Optional, Sequence

MOST_TURNS = 100
POWER = 0.8416  # standard deviations: so many turns see a difference in four comparisons of five
# Student's t at 97.5%, by degrees of freedom: without scipy, of the largest number that is not larger, which is never too sure.
CRITICAL = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 12: 2.179, 15: 2.131}
CRITICAL.update({20: 2.086, 30: 2.042, 40: 2.021, 60: 2.0})


@lru_cache(maxsize=None)
def critical(freedom: int) -> float:
    """Student's t at 97.5%, for so many degrees of freedom."""
    try:
        from scipy import stats
    except ImportError:
        return CRITICAL[max(known for known in CRITICAL if known <= freedom)]
    return float(stats.t.ppf(0.975, freedom))


@dataclass(frozen=True)
class Difference:
    """How many times as fast the second run of a turn is. ``ratio`` is the mean of all turns, and the true one is between ``low`` and
    ``high`` with 95%. ``needed`` is how many turns like these would show a difference of this size, None if more than MOST_TURNS."""

    ratio: float
    low: float
    high: float
    needed: Optional[int]

    @property
    def seen(self) -> bool:
        """Whether there is one, at 95%."""
        return self.low > 1 or self.high < 1


def difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    """From the times of the first and of the second run of each turn."""
    logs = [math.log(one / other) for one, other in zip(first, second)]
    mean, count = statistics.fmean(logs), len(logs)
    if count < 2:
        return Difference(math.exp(mean), 0.0, math.inf, None)
    deviation = statistics.stdev(logs)
    half = critical(count - 1) * deviation / math.sqrt(count)
    return Difference(math.exp(mean), math.exp(mean - half), math.exp(mean + half), _needed(abs(mean), deviation))


def _needed(mean: float, deviation: float) -> Optional[int]:
    enough = (turns for turns in range(2, MOST_TURNS + 1) if (critical(turns - 1) + POWER) * deviation <= mean * math.sqrt(turns))
    return next(enough, None)
