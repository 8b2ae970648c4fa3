"""When a plan is made: after the warm-up, and again when its numbers have changed. All ranks do so after the same iteration."""

import logging
from itertools import chain
from typing import List, Optional

import torch.distributed as dist

from ..config import Config
from ..errors import ProfileError
from ..policies import OFF
from .agreement import Plan, Planner
from .exchange import Exchange

logger = logging.getLogger("prophet_mx")

SETTLING = 2  # iterations that are finished one by one even with a saved profile: they show who uses a parameter unseen
FIRST_LOOK = 8  # iterations after which the first plan's numbers are compared with what the job itself shows
FOLLOW_EVERY = 100  # iterations between two such looks later
FOLLOW_SPAN = 3  # iterations that are looked at


class Learner:
    """Makes the plans of an exchange of what its iterations show. Called in the thread that calls ``step()``.

    Parameters
    ----------
    exchange, planner, config : those of the optimizer.
    control : the group for what this thread sends while collectives are under way.
    plan : that the exchange begins with; with a profile if that was saved by an earlier job.

    Attributes
    ----------
    plan : that stands.
    plans : how many have been made of profiles.
    """

    def __init__(self, exchange: Exchange, planner: Planner, config: Config, control: dist.ProcessGroup, plan: Plan) -> None:
        self._exchange, self._planner, self._config, self._control = exchange, planner, config, control
        self._until_look = FIRST_LOOK
        self._resumed = plan.profile is not None
        self.plan, self.plans = plan, int(self._resumed)

    def iteration_ends(self) -> None:
        """At the end of ``step()``."""
        if self._exchange.recording:
            self._warm_up()
        else:
            self._follow()

    def _warm_up(self) -> None:
        """Until there is a plan, iterations are finished one by one."""
        self._exchange.synchronize()
        if self._config.policy == OFF:
            self._exchange.samples.clear()
            return
        seen = len(self._exchange.samples)
        if self._resumed and seen >= SETTLING:
            self._exchange.samples.clear()
        elif not self._resumed and seen > self._config.warmup:
            self._take_plan(self._exchange.samples[1:])
        else:
            return
        self._exchange.recording = False

    def _follow(self) -> None:
        """Once in FOLLOW_EVERY iterations, on all ranks in the same one, see whether the plan's numbers have changed."""
        self._until_look -= 1
        self._exchange.sampling = self._until_look < FOLLOW_SPAN
        if self._until_look == 0:
            self._until_look = FOLLOW_EVERY
            with self._exchange.waiting.blocked("rank 0's decision whether to make another plan"):
                drifted = self._planner.drifted(self._exchange.samples, self._exchange.rounds.observed_rate(), self._control)
            if drifted:
                self._take_plan(self._exchange.samples)
            self._exchange.samples.clear()

    def _take_plan(self, samples: List[List[Optional[float]]]) -> None:
        places = {
            index: place
            for place, index in enumerate(dict.fromkeys(each.index for each in chain(self._exchange.last_uses, self._exchange.tracked)))
        }
        self._exchange.finish()
        with self._exchange.waiting.blocked("the other ranks' vote on a plan"):
            self.plan = self._planner.plan(samples, [places[each.index] for each in self._exchange.tracked])
        self.plans += 1
        self._exchange.install(self.plan)
        self._exchange.samples.clear()
        if self._config.profile and self._control.rank() == 0 and self.plan.profile is not None:
            try:
                self.plan.profile.save(self._config.profile)
            except ProfileError as error:
                logger.error("%s", error)  # no reason for a job to fail
