"""Whether this job is faster with the schedule or with DistributedDataParallel alone: it tries both, and goes on with the faster.

A *turn* is BLOCK scheduled iterations, then as many in which DistributedDataParallel reduces. The first SETTLING of each are not counted:
pipelines fill, and DistributedDataParallel may arrange its buckets. It is faster if it was so in each of TURNS turns, and by MARGIN in all.
So the first turn that the schedule wins is the last one. So is one after which a parameter is found to be unfrozen: the schedule stays, as
DistributedDataParallel alone would train it by gradients that are not reduced.
"""

import logging
import time
from statistics import median
from typing import List, NamedTuple, Optional

import torch
import torch.distributed as dist

from ..config import Config
from .exchange import Exchange
from .modules import Model

logger = logging.getLogger("prophet_mx")

AFTER = 12  # iterations with a plan: its numbers have been looked at (agreement.FIRST_LOOK)
BLOCK = 10  # iterations
SETTLING = 2  # iterations
TURNS = 2
MARGIN = 0.01

RUNNING, PAUSE, RESUME = "goes on", "DistributedDataParallel's block begins", "the turn is over"


class Times(NamedTuple):
    """Median seconds of an iteration, by turn."""

    scheduled: List[float]
    ddp: List[float]

    def ddp_won(self) -> bool:
        """Whether it was faster in each of these turns."""
        return all(ddp < scheduled for scheduled, ddp in zip(self.scheduled, self.ddp))

    def ddp_is_faster(self) -> bool:
        """See the top of this file."""
        return self.ddp_won() and median(self.ddp) < (1 - MARGIN) * median(self.scheduled)


class Turns:
    """Which block is on, and what its iterations took. Pure: it is told the time."""

    def __init__(self) -> None:
        self._left = AFTER  # iterations until the first turn
        self._last = 0.0
        self._blocks: List[List[float]] = []

    def iteration_ends(self, now: float) -> str:
        """What comes next; ``now`` in seconds."""
        seconds, self._last = now - self._last, now
        self._left -= 1
        if self._blocks:
            self._blocks[-1].append(seconds)
        if self._left > 0:
            return RUNNING
        self._blocks.append([])
        self._left = BLOCK
        if len(self._blocks) == 1:
            return RUNNING
        return RESUME if len(self._blocks) % 2 else PAUSE

    def times(self) -> Times:
        """This rank's, of the turns that are over."""
        medians = [median(block[SETTLING:]) for block in self._blocks if len(block) == BLOCK]
        return Times(medians[::2], medians[1::2])


class Trial:
    """Tries both in one job. All ranks do the same at the end of the same ``step()``.

    Parameters
    ----------
    exchange, model, config : of the optimizer. Without a DistributedDataParallel around the model nothing is tried.
    control : the group for what this thread sends while collectives are under way.

    Attributes
    ----------
    times : all ranks', once it is over; None if a parameter was unfrozen.
    """

    def __init__(self, exchange: Exchange, model: Model, config: Config, control: dist.ProcessGroup) -> None:
        self._exchange, self._model, self._config, self._control = exchange, model, config, control
        self._turns: Optional[Turns] = Turns()
        self.times: Optional[Times] = None

    def iteration_ends(self) -> bool:
        """At the end of ``step()``, once there is a plan. True if it is over, and DistributedDataParallel is faster."""
        called, self._model.called = self._model.called, False
        if self._turns is None or self._model.ddp is None or not called:
            return False
        what = self._turns.iteration_ends(time.perf_counter())
        if what == PAUSE:
            self._model.pause(self._config)
        elif what == RESUME:
            times = self._agreed(self._turns.times())
            self._model.resume()
            if self._any_unfrozen():
                self._turns = None
                return False
            if len(times.ddp) == TURNS or not times.ddp_won():
                self.times, self._turns = times, None
                return self._decided(times)
        return False

    def _agreed(self, mine: Times) -> Times:
        """The times of the slowest rank."""
        seconds = torch.tensor([*mine.scheduled, *mine.ddp])
        with self._exchange.waiting.blocked("the other ranks' times of an iteration"):
            dist.all_reduce(seconds, dist.ReduceOp.MAX, group=self._control)
        every = seconds.tolist()
        return Times(every[: len(mine.scheduled)], every[len(mine.scheduled) :])

    def _any_unfrozen(self) -> bool:
        """Whether a parameter was unfrozen on some rank, which DistributedDataParallel alone would not reduce."""
        unfrozen = torch.tensor([int(self._model.unfrozen)])
        with self._exchange.waiting.blocked("whether other ranks have unfrozen parameters"):
            dist.all_reduce(unfrozen, dist.ReduceOp.MAX, group=self._control)
        return bool(unfrozen.item())

    def _decided(self, times: Times) -> bool:
        figures = 1e3 * median(times.scheduled), 1e3 * median(times.ddp)
        if not times.ddp_is_faster():
            logger.info("an iteration takes %.1f ms, with DistributedDataParallel alone %.1f ms", *figures)
            return False
        log = logger.warning if self._control.rank() == 0 else logger.info
        log(
            "an iteration takes %.1f ms, with DistributedDataParallel alone %.1f ms: the job goes on with it alone "
            "(fallback='off' keeps the schedule)",
            *figures,
        )
        return True
