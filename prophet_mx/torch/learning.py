"""When the plan of a round is made, and how the ranks settle it: after the warm-up, and again when its numbers have changed.

All ranks call everything here after the same iteration, in the thread that calls ``step()``. The plans themselves are made by
planning/rounds.py.
"""

import logging
from itertools import chain
from typing import Any, List, Optional, Sequence

import torch
import torch.distributed as dist

from ..config import Config
from ..errors import ProfileError
from ..planning.rounds import Parameter, RoundPlan, RoundPlanner
from ..policies import OFF
from ..profiling.gradient_profile import GradientProfile
from ..profiling.steps import Times
from ..quantities import format_rate
from . import agreement
from .exchange import Exchange
from .strategies import Strategy
from .tracked import Tracked

logger = logging.getLogger("prophet_mx")

FIRST_UNIT = 1 << 20  # bytes, until it is known what collectives cost
SETTLING = 2  # iterations that are finished one by one even with a saved profile: they show who uses a parameter unseen
FIRST_LOOK = 8  # iterations after which the first plan's numbers are compared with what the job itself shows
FOLLOW_EVERY = 100  # iterations between two such looks later
FOLLOW_SPAN = 3  # iterations that are looked at


class Planning:
    """The ranks' common plans. ``group``, which carries the strategy's collectives, carries nothing else while a plan is made."""

    def __init__(self, group: dist.ProcessGroup, strategy: Strategy, tracked: Sequence[Tracked], config: Config) -> None:
        self._group, self._strategy, self._device = group, strategy, tracked[0].param.device
        parameters = [
            Parameter(each.name, each.bytes, each.param.element_size(), (each.param.dtype, each.param.device)) for each in tracked
        ]
        self._planner = RoundPlanner(parameters, config.unit)
        self._first_unit = config.unit or FIRST_UNIT

    def begin(self, saved: Optional[GradientProfile]) -> RoundPlan:
        """The plan that a job begins with. ``saved``: the profile of an earlier one, which all ranks have."""
        if saved is None:
            return self._planner.first_plan(self._first_unit)
        self._measure()
        shared: List[Any] = [self._planner.cost]
        dist.broadcast_object_list(shared, dist.get_global_rank(self._group, 0), group=self._group)
        return _logged(self._planner.resume(saved, shared[0]))

    def learn(self, samples: Sequence[Times], urgency: Sequence[int]) -> RoundPlan:
        """The plan for ready times of some iterations, and for the parameters' places in the order in which forward needs them."""
        self._measure()
        every: List[Any] = [None] * self._group.size()
        dist.all_gather_object(every, (self._planner.ready_times(samples), urgency, self._planner.cost), group=self._group)
        # A collective starts when its gradients are ready on all ranks. All else is as rank 0 has it.
        ready = [max(times) for times in zip(*(ready for ready, _, _ in every))]
        _, places, cost = every[0]
        return _logged(self._planner.plan(self._planner.profile(ready, places), cost))

    def drifted(self, samples: Sequence[Times], rate: Optional[float], control: dist.ProcessGroup) -> bool:
        """Whether rank 0's numbers (:meth:`RoundPlanner.drifted`) are no longer those of the plan.

        All ranks get the same answer, over ``control``: in the own group collectives are under way.
        """
        answer = torch.zeros(1, dtype=torch.int32, device=self._device)
        if self._group.rank() == 0:
            answer.fill_(int(self._planner.drifted(samples, rate)))
        dist.broadcast(answer, dist.get_global_rank(self._group, 0), group=control)
        return bool(answer.item())

    def _measure(self) -> None:
        if self._planner.cost is None:
            self._planner.measured(agreement.measure(self._group, self._strategy, self._device))


def _logged(plan: RoundPlan) -> RoundPlan:
    assert plan.cost is not None
    logger.info(
        "plan: %d units of up to %d KB; a collective takes %.2f ms and %s",
        len(plan.units),
        max(unit.bytes for unit in plan.units) / 1e3,
        1e3 * plan.cost.startup,
        format_rate(plan.cost.rate),
    )
    return plan


class Learner:
    """Plans from observed iterations.

    Parameters
    ----------
    exchange, planning, config : those of the optimizer.
    control : the group for what this thread sends while collectives are under way.
    plan : the one that the exchange begins with; it has a profile if an earlier job saved one.

    Attributes
    ----------
    plan : the present one.
    plans : how many have been made of profiles.
    """

    def __init__(self, exchange: Exchange, planning: Planning, config: Config, control: dist.ProcessGroup, plan: RoundPlan) -> None:
        self._exchange, self._planning, self._config, self._control = exchange, planning, config, control
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
                drifted = self._planning.drifted(self._exchange.samples, self._exchange.rounds.observed_rate(), self._control)
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
            self.plan = self._planning.learn(samples, [places[each.index] for each in self._exchange.tracked])
        self.plans += 1
        self._exchange.install(self.plan)
        self._exchange.samples.clear()
        if self._config.profile and self._control.rank() == 0 and self.plan.profile is not None:
            try:
                self.plan.profile.save(self._config.profile)
            except ProfileError as error:
                logger.error("%s", error)  # no reason for a job to fail
