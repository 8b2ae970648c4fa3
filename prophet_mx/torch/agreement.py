"""What all ranks settle together: that they train the same model, what a collective costs, and the plans of their rounds.

All ranks call everything here at the same point of the program. Plans are made (planning/rounds.py) after the warm-up, and again when their
numbers have changed.
"""

import logging
import os
import time
from itertools import chain
from typing import Any, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from ..config import Config
from ..errors import ConfigError, ProfileError
from ..planning.rounds import GUESS, HALVES, TOGETHER, URGENT, Parameter, RoundPlan, RoundPlanner
from ..planning.unit_sizes import CollectiveCost, too_small_for_collectives
from ..policies import OFF
from ..profiling.gradient_profile import GradientProfile
from ..profiling.steps import Times
from ..quantities import format_rate
from .exchange import Exchange
from .habits import Habits
from .norms import divisible, has_parts
from .strategies import ANY_ORDER, OUTSTANDING, Strategy, backend_for
from .streams import streams_of
from .tracked import Tracked

logger = logging.getLogger("prophet_mx")

PROBE_SMALL = 1024  # bytes: next to nothing but the start-up
LOOKS = 16  # at what the start-up is
PROBE_LARGE = (1 << 18, 1 << 20, 1 << 22)  # bytes: the largest that does not take long
PROBE_SECONDS = 0.05  # a collective that takes longer is large enough to tell the rate
FIRST_UNIT = 1 << 20  # bytes, until it is known what collectives cost
SETTLING = 2  # iterations that are finished one by one even with a saved profile: they show who uses a parameter unseen
FIRST_LOOK = 8  # rounds after which the first plan's numbers are compared with what the job itself shows
FOLLOW_EVERY = 100  # rounds between two such looks later
FOLLOW_SPAN = 3  # rounds that are looked at


def check_same(group: dist.ProcessGroup, tracked: Sequence[Tracked], config: Config, settings: Tuple[Any, ...]) -> None:
    """Raise ConfigError on every rank if the ranks differ in parameters or settings."""
    mine = [
        (each.name, tuple(each.param.shape), tuple(each.param.stride()), str(each.param.dtype), each.param.device.type) for each in tracked
    ]
    about = (config.policy, config.unit, config.warmup, config.compress, config.clipping, config.fallback, *settings)
    every: List[Any] = [None] * group.size()
    dist.all_gather_object(every, (about, mine), group=group)
    ranks = dist.get_process_group_ranks(group)
    for rank, (other, params) in zip(ranks, every):
        both = f"ranks {ranks[0]} and {rank}"
        if other != every[0][0]:
            raise ConfigError(f"{both} have different settings: {every[0][0]} and {other}; allowed: the same on all ranks")
        if params != every[0][1]:
            place = next((p for p, pair in enumerate(zip(params, every[0][1])) if pair[0] != pair[1]), min(len(params), len(every[0][1])))
            theirs = [row[place] if place < len(row) else "nothing" for row in (every[0][1], params)]
            raise ConfigError(f"{both} do not train the same model: parameter {place} is {theirs[0]} and {theirs[1]}")


def saved_profile(group: dist.ProcessGroup, tracked: Sequence[Tracked], config: Config) -> Optional[GradientProfile]:
    """The profile of an earlier job, in the file that rank 0's settings name; None without one of these parameters.

    Raises ProfileError on every rank if the file holds no profile.
    """
    shared: List[Any] = [None, None]  # the profile as a text, and what is wrong with it
    if group.rank() == 0 and config.profile and config.policy != OFF and os.path.exists(config.profile):
        try:
            shared[0] = GradientProfile.load(config.profile).to_json()
        except ProfileError as error:
            shared[1] = str(error)
    dist.broadcast_object_list(shared, dist.get_global_rank(group, 0), group=group)
    if shared[1] is not None:
        raise ProfileError(shared[1])
    if shared[0] is None:
        return None
    profile = GradientProfile.from_json(shared[0])
    if {gradient.name for gradient in profile.gradients} == {each.name for each in tracked}:
        return profile
    if group.rank() == 0:
        logger.warning("the profile in %s describes other parameters and is not used", config.profile)
    return None


def measure(group: dist.ProcessGroup, strategy: Strategy, device: torch.device) -> CollectiveCost:
    """What a unit of ``strategy``, over ``group``, costs while OUTSTANDING of them are under way; takes some tenths of a second."""
    itemsize = strategy.itemsize(torch.float32)
    small = torch.zeros(PROBE_SMALL // itemsize, device=device)
    _seconds(group, strategy, small, 8)
    # The quickest quarter of many short looks, as some take several times as long, while others use the processors. But the very quickest
    # says too little: that of one job may be a third of another's.
    looks = sorted(_seconds(group, strategy, small, 16) for _ in range(LOOKS))
    startup = looks[LOOKS // 4]
    rate = GUESS.rate
    for size in PROBE_LARGE:
        seconds = torch.tensor([_seconds(group, strategy, torch.zeros(size // itemsize, device=device), 3 * OUTSTANDING)], device=device)
        dist.all_reduce(seconds, dist.ReduceOp.MAX, group=group)  # so that all ranks go on, or none
        rate = size / float(seconds)
        if float(seconds) > PROBE_SECONDS:
            break
    return CollectiveCost(startup, rate)


def _seconds(group: dist.ProcessGroup, strategy: Strategy, tensor: torch.Tensor, count: int) -> float:
    """Seconds that each of ``count`` units takes, one after the other with OUTSTANDING under way."""
    tensors = [tensor.clone() for _ in range(OUTSTANDING)]
    dist.barrier(group=group)
    began = time.perf_counter()
    works: List[Tuple[torch.Tensor, Any]] = []
    for number in range(count):
        if len(works) == OUTSTANDING:
            strategy.finish(*works.pop(0))
        unit = tensors[number % OUTSTANDING]
        works.append((unit, strategy.start(unit)))
    for unit, work in works:
        strategy.finish(unit, work)
    streams = streams_of([tensor])
    if streams is not None:
        streams.settle()
    return (time.perf_counter() - began) / count


class Planning:
    """The ranks' common plans. ``group`` carries the strategy's collectives. None is under way while a plan is made."""

    def __init__(self, group: dist.ProcessGroup, strategy: Strategy, tracked: Sequence[Tracked], config: Config) -> None:
        self._group, self._strategy, self._device = group, strategy, tracked[0].param.device
        kinds = {each.param.dtype.is_complex or each.param.device.type != "cpu" for each in tracked}
        able = kinds == {False} and backend_for(self._device, group) == ANY_ORDER and group.size() > 1
        self._can_halve = able and config.clipping == "overlap"
        self._divides = self._can_halve and divisible()
        wire = [strategy.itemsize(each.param.dtype) for each in tracked]
        parameters = [
            Parameter(each.name, each.param.numel() * itemsize, itemsize, (each.param.dtype, each.param.device), has_parts(each.param))
            for each, itemsize in zip(tracked, wire)
        ]
        absurd = too_small_for_collectives(sum(each.bytes for each in parameters), config.unit)
        if absurd and group.rank() == 0:
            logger.warning("%s. A plain number is bytes: write 256KB for kilobytes", absurd)
        self._planner = RoundPlanner(parameters, config.unit)
        self._way = URGENT  # of the last plan, as rank 0 chose it
        self._first_unit = config.unit or FIRST_UNIT

    def begin(self, saved: Optional[GradientProfile]) -> RoundPlan:
        """The plan that a job begins with. ``saved``: the profile of an earlier one, which all ranks have."""
        if saved is None:
            return self._planner.first_plan(self._first_unit)
        self._measure()
        shared: List[Any] = [self._planner.cost]
        dist.broadcast_object_list(shared, dist.get_global_rank(self._group, 0), group=self._group)
        return _logged(self._planner.resume(saved, shared[0]))

    def way(self, habits: Habits) -> str:
        """How gradients are to travel, by what this rank's program does with them."""
        if self._way == HALVES and habits.waits:  # it reads all of them after clipping as well
            self._can_halve = False
        return HALVES if habits.clips and self._can_halve else TOGETHER if habits.waits else URGENT

    def learn(self, samples: Sequence[Times], urgency: Sequence[int], way: str) -> RoundPlan:
        """The plan for ready times of some iterations, and for the parameters' places in the order in which forward needs them."""
        self._measure()
        every: List[Any] = [None] * self._group.size()
        mine = self._divides, self._planner.ready_times(samples), urgency, self._planner.cost, way
        dist.all_gather_object(every, mine, group=self._group)
        # A collective starts when its gradients are ready on all ranks. All else is as rank 0 has it.
        ready = [max(times) for times in zip(*(ready for _, ready, *_ in every))]
        divide = all(divides for divides, *_ in every)
        _, _, places, cost, self._way = every[0]
        return _logged(self._planner.plan(self._planner.profile(ready, places), cost, self._way, self._group.size(), divide))

    def drifted(self, samples: Sequence[Times], rate: Optional[float], way: str, control: dist.ProcessGroup) -> bool:
        """Whether rank 0's numbers (:meth:`RoundPlanner.drifted`), or what it does with gradients, are no longer those of the plan.

        All ranks get the same answer, over ``control``: in the own group collectives are under way.
        """
        answer = torch.zeros(1, dtype=torch.int32)
        if self._group.rank() == 0:
            answer.fill_(int(self._planner.drifted(samples, rate) | (way != self._way)))
        dist.broadcast(answer, dist.get_global_rank(self._group, 0), group=control)
        return bool(answer.item())

    def _measure(self) -> None:
        if self._planner.cost is None:
            self._planner.measured(measure(self._group, self._strategy, self._device))


def _logged(plan: RoundPlan) -> RoundPlan:
    assert plan.cost is not None
    logger.info(
        "plan: %d units of up to %d KB%s; a collective takes %.2f ms and %s",
        len(plan.units),
        max(unit.bytes for unit in plan.units) / 1e3,
        {HALVES: ", in halves, as gradients are clipped", TOGETHER: ", as they become ready, as step() waits for all"}.get(plan.way, ""),
        1e3 * plan.cost.startup,
        format_rate(plan.cost.rate),
    )
    return plan


class Learner:
    """Plans from observed iterations. Called in the program's thread.

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
        self._counted = 0  # the last round whose end was seen
        self._resumed = plan.profile is not None
        self.plan, self.plans = plan, int(self._resumed)

    def round_ends(self) -> None:
        """At the end of ``step()``, or when forward begins, if the program has left out that ``step()``. Ranks count rounds, which are the
        same on all of them. They need not be alike in steps."""
        if self._counted == self._exchange.rounds.number:
            if self._exchange.recording:  # another optimizer of the model has stepped
                self._exchange.synchronize()
            return
        self._counted = self._exchange.rounds.number
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
        """Once in FOLLOW_EVERY rounds, on all ranks in the same one, see whether the plan's numbers have changed."""
        self._until_look -= 1
        self._exchange.sampling = self._until_look < FOLLOW_SPAN
        if self._until_look == 0:
            self._until_look = FOLLOW_EVERY
            with self._exchange.waiting.blocked("rank 0's decision whether to make another plan"):
                rate = self._exchange.rounds.observed_rate()
                way = self._planning.way(self._exchange.habits)
                drifted = self._planning.drifted(self._exchange.samples, rate, way, self._control)
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
            urgency = [places[each.index] for each in self._exchange.tracked]
            self.plan = self._planning.learn(samples, urgency, self._planning.way(self._exchange.habits))
        self.plans += 1
        self._exchange.install(self.plan)
        self._exchange.samples.clear()
        if self._config.profile and self._control.rank() == 0 and self.plan.profile is not None:
            try:
                self.plan.profile.save(self._config.profile)
            except ProfileError as error:
                logger.error("%s", error)  # no reason for a job to fail
