"""How sure a median over jobs is: bootstrap intervals. Iterations of one job are alike, so a job counts once."""

from typing import NamedTuple, Optional, Sequence

import numpy as np

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
