"""What a program does with gradients between backward and ``step()``: the plan depends on it (planning/rounds.py)."""

from collections import deque
from typing import Deque, Sequence, Tuple

from .tracked import SUMMING, Tracked

LAST = 3  # calls of step() that show what a job does


def all_read(tracked: Sequence[Tracked]) -> bool:
    """Before ``step()``: whether the program has read the gradients of all parameters, so that it has waited for all sums."""
    return not any(each.hidden for each in tracked) and any(each.stage == SUMMING for each in tracked)


class Habits:
    """Of the program of one optimizer. All of it is called in the thread that calls ``step()``.

    Attribute ``clipping``: ``clip_grad_norm_`` has read gradients since the last ``step()``.
    """

    def __init__(self) -> None:
        self.clipping = False
        self._steps: Deque[Tuple[bool, bool]] = deque(maxlen=LAST)  # whether gradients were clipped, and all of them read

    def step_begins(self, tracked: Sequence[Tracked]) -> None:
        """``step()`` is called, with these parameters."""
        self._steps.append((self.clipping, all_read(tracked)))
        self.clipping = False

    @property
    def clips(self) -> bool:
        """Whether gradients are clipped by their norm, in some iterations at least."""
        return any(clipped for clipped, _ in self._steps)

    @property
    def waits(self) -> bool:
        """Whether all gradients are read before ``step()``, in every iteration."""
        return bool(self._steps) and all(read for _, read in self._steps)
