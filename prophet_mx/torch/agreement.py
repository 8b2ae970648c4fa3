"""What all ranks settle together: that they train the same model, what a collective costs, and the plan.

Everything here is collective: all ranks call it at the same point of the program, with nothing else under way in the group.
"""

import logging
import os
import time
from datetime import timedelta
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from ..config import Config
from ..errors import ConfigError, ProfileError
from ..planning.collective_units import fixed_sizes, partition, unit_sizes
from ..planning.collectives import CollectiveCost, CollectiveUnit, Gradient, static_order
from ..policies import OFF
from ..profiling.gradient_profile import GradientProfile
from ..quantities import format_rate
from .strategies import OUTSTANDING
from .streams import streams_of
from .tracked import Tracked

logger = logging.getLogger("prophet_mx")

PROBE_SMALL = 1024  # bytes: next to nothing but the start-up
PROBE_LARGE = (1 << 18, 1 << 20, 1 << 22)  # bytes: the largest that does not take long
PROBE_SECONDS = 0.05  # a collective that takes longer is large enough to tell the rate
DRIFT = 0.1  # of backward's time, by which most gradients become ready earlier or later: the profile is another
RATE_DRIFT = 0.03  # of the plan's rate
LEAST_RATE = 0.8  # of the probe's rate
GUESS = CollectiveCost(0.0005, 100e6)  # until it is measured


class Plan(NamedTuple):
    """The same on all ranks.

    Attributes
    ----------
    units : pieces of parameters, (index, start, stop) in elements; the most urgent unit first.
    order : of units, in which they are reduced.
    cost : of a collective, None before it is measured.
    profile : that the plan was made of, in the order of forward; None before there is one.
    """

    units: Sequence[Sequence[Tuple[int, int, int]]]
    order: List[int]
    cost: Optional[CollectiveCost] = None
    profile: Optional[GradientProfile] = None

    def steps(self) -> Dict[str, int]:
        """The step in which each parameter's gradient becomes ready, by name; empty before there is a profile."""
        if self.profile is None:
            return {}
        return {self.profile.gradients[index].name: step for step, members in enumerate(self.profile.steps) for index in members}


def own_group(parent: Optional[dist.ProcessGroup], config: Config) -> dist.ProcessGroup:
    """A new group of the same ranks and the same backend, so that collectives of the program never come between ours."""
    timeout = None if config.stall_abort is None else timedelta(seconds=config.stall_abort)
    backend = dist.get_backend(parent)  # new_group() takes that of the default group
    if parent is None or parent is dist.group.WORLD:
        return dist.new_group(timeout=timeout, backend=backend)
    return dist.new_group(dist.get_process_group_ranks(parent), timeout=timeout, backend=backend, use_local_synchronization=True)


def give_up_group(group: dist.ProcessGroup) -> None:
    """Destroy a group of :func:`own_group`, with nothing under way in it. The program may have destroyed all groups before."""
    if dist.is_initialized() and group in dist.distributed_c10d._world.pg_map:
        dist.destroy_process_group(group)


def check_same(group: dist.ProcessGroup, tracked: Sequence[Tracked], config: Config, settings: Tuple[Any, ...]) -> None:
    """Raise ConfigError on every rank if the ranks differ in parameters or settings."""
    mine = [
        (each.name, tuple(each.param.shape), tuple(each.param.stride()), str(each.param.dtype), each.param.device.type) for each in tracked
    ]
    about = (config.policy, config.unit, config.warmup, *settings)
    every: List[Any] = [None] * group.size()
    dist.all_gather_object(every, (about, mine), group=group)
    for rank, (other, params) in enumerate(every):
        if other != every[0][0]:
            raise ConfigError(f"ranks 0 and {rank} have different settings: {every[0][0]} and {other}; allowed: the same on all ranks")
        if params != every[0][1]:
            place = next((p for p, pair in enumerate(zip(params, every[0][1])) if pair[0] != pair[1]), min(len(params), len(every[0][1])))
            theirs = [row[place] if place < len(row) else "nothing" for row in (every[0][1], params)]
            raise ConfigError(f"ranks 0 and {rank} do not train the same model: parameter {place} is {theirs[0]} and {theirs[1]}")


def first_plan(tracked: Sequence[Tracked], unit: int) -> Plan:
    """A plan for the time until there is a profile: the last parameters first, as backward mostly has them."""
    units = partition(_gradients(tracked, [0.0] * len(tracked)), fixed_sizes(unit), GUESS)
    return Plan([each.pieces for each in units], list(range(len(units)))[::-1])


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


class Planner:
    """Makes the plan of what the ranks have seen.

    Attribute ``ready``: the ready times (seconds, by parameter) of the plan that stands.
    """

    def __init__(self, group: dist.ProcessGroup, tracked: Sequence[Tracked], config: Config) -> None:
        self._group, self._tracked, self._config = group, tracked, config
        self._measured: Optional[CollectiveCost] = None  # by the probe
        self._cost: Optional[CollectiveCost] = None  # of the plan
        self._profiled: Optional[List[float]] = None  # ready times at the last look, rank 0's
        self.ready: List[float] = []

    def plan(self, samples: List[List[Optional[float]]], urgency: List[int]) -> Plan:
        """The plan for ready times of some iterations, and for the parameters' places in the order in which forward needs them."""
        self._measure()
        every: List[Any] = [None] * self._group.size()
        dist.all_gather_object(every, (self._profile(samples), urgency, self._cost), group=self._group)
        # A collective starts when its gradients are ready on all ranks. All else is as rank 0 has it.
        ready = [max(times) for times in zip(*(ready for ready, _, _ in every))]
        _, places, cost = every[0]
        forward = sorted(range(len(places)), key=lambda index: places[index])
        names, sizes = self._named([self._tracked[index] for index in forward])
        return self._made(GradientProfile.from_samples("job", names, sizes, [[ready[index] for index in forward]]), cost)

    def resume(self, profile: GradientProfile) -> Plan:
        """The plan for the profile of an earlier job, which all ranks have."""
        self._measure()
        shared: List[Any] = [self._cost]
        dist.broadcast_object_list(shared, dist.get_global_rank(self._group, 0), group=self._group)
        plan = self._made(profile, shared[0])
        self._profiled = self.ready
        return plan

    def _measure(self) -> None:
        if self._measured is None:
            self._measured = self._cost = measure(self._group, self._tracked[0].param.device)

    def _made(self, profile: GradientProfile, cost: CollectiveCost) -> Plan:
        """The plan for a profile of all parameters and for a cost, which all ranks have."""
        names = [gradient.name for gradient in profile.gradients]
        places, ready = {name: place for place, name in enumerate(names)}, dict(zip(names, profile.ready_times()))
        for each in self._tracked:
            each.urgency = places[each.name]
        self.ready = [ready[each.name] for each in self._tracked]
        self._cost = cost
        gradients = _gradients(self._tracked, self.ready)
        units = partition(gradients, fixed_sizes(self._config.unit) if self._config.unit else unit_sizes(cost, gradients), cost)
        _log(units, cost)
        return Plan([unit.pieces for unit in units], static_order(units, cost), cost, profile)

    def drifted(self, samples: List[List[Optional[float]]], rate: Optional[float], control: dist.ProcessGroup) -> bool:
        """Whether rank 0's gradients become ready at other times than planned, or its collectives are carried at another rate (bytes/s).

        All ranks get the same answer, over ``control``: in the own group collectives are under way.
        """
        answer = torch.zeros(1, dtype=torch.int32, device=self._tracked[0].param.device)
        if self._group.rank() == 0:
            answer.fill_(int(self._ready_drifted(samples) | self._rate_drifted(rate)))
        dist.broadcast(answer, dist.get_global_rank(self._group, 0), group=control)
        return bool(answer.item())

    def _ready_drifted(self, samples: List[List[Optional[float]]]) -> bool:
        if not samples:
            return False
        now = self._profile(samples)
        if self._profiled is None:
            self._profiled = now
        moved = sorted(abs(new - old) for new, old in zip(now, self._profiled))[len(now) // 2]
        drifted = moved > DRIFT * max(max(self._profiled), max(now))
        if drifted:
            self._profiled = now
        return drifted

    def _rate_drifted(self, rate: Optional[float]) -> bool:
        """Take the rate that the job itself gets. It is a little lower than the probe's, as computing needs the processors as well; where
        it is much lower, collectives wait for slow ranks, which is no matter of the rate."""
        if rate is None or self._measured is None or self._cost is None:
            return False
        taken = min(self._measured.rate, max(LEAST_RATE * self._measured.rate, rate))
        if abs(taken - self._cost.rate) <= RATE_DRIFT * self._cost.rate:
            return False
        self._cost = self._measured._replace(rate=taken)
        return True

    def _profile(self, samples: List[List[Optional[float]]]) -> List[float]:
        names, sizes = self._named(self._tracked)
        return list(GradientProfile.from_samples("job", names, sizes, samples).ready_times())

    @staticmethod
    def _named(tracked: Sequence[Tracked]) -> Tuple[List[str], List[int]]:
        return [each.name for each in tracked], [max(1, each.bytes) for each in tracked]


def _log(units: Sequence[CollectiveUnit], cost: CollectiveCost) -> None:
    logger.info(
        "plan: %d units of up to %d KB; a collective takes %.2f ms and %s",
        len(units),
        max(unit.bytes for unit in units) / 1e3,
        1e3 * cost.startup,
        format_rate(cost.rate),
    )


def _kind(tracked: Tracked) -> Tuple[torch.dtype, torch.device]:
    """What gradients must have in common to travel together."""
    return tracked.param.dtype, tracked.param.device


def _gradients(tracked: Sequence[Tracked], ready: Sequence[float]) -> List[Gradient]:
    kinds: Dict[Tuple[torch.dtype, torch.device], int] = {}
    return [
        Gradient(each.bytes, each.param.element_size(), kinds.setdefault(_kind(each), len(kinds)), each.urgency, moment)
        for each, moment in zip(tracked, ready)
    ]


def measure(group: dist.ProcessGroup, device: torch.device) -> CollectiveCost:
    """What a collective costs while OUTSTANDING of them are under way; takes some tenths of a second."""
    _seconds(group, torch.zeros(PROBE_SMALL // 4, device=device), 8)
    # The least of many short looks: while others use the processors, one takes several times as long.
    startup = min(_seconds(group, torch.zeros(PROBE_SMALL // 4, device=device), 8) for _ in range(16))
    rate = GUESS.rate
    for size in PROBE_LARGE:
        seconds = torch.tensor([_seconds(group, torch.zeros(size // 4, device=device), 3 * OUTSTANDING)], device=device)
        dist.all_reduce(seconds, dist.ReduceOp.MAX, group=group)  # so that all ranks go on, or none
        rate = size / float(seconds)
        if float(seconds) > PROBE_SECONDS:
            break
    return CollectiveCost(startup, rate)


def _seconds(group: dist.ProcessGroup, tensor: torch.Tensor, count: int) -> float:
    """Seconds that each of ``count`` collectives takes, one after the other with OUTSTANDING under way."""
    tensors = [tensor.clone() for _ in range(OUTSTANDING)]
    dist.barrier(group=group)
    began = time.perf_counter()
    works: List[Any] = []
    for number in range(count):
        if len(works) == OUTSTANDING:
            works.pop(0).wait()
        works.append(dist.all_reduce(tensors[number % OUTSTANDING], group=group, async_op=True))
    for work in works:
        work.wait()
    streams = streams_of([tensor])
    if streams is not None:
        streams.settle()
    return (time.perf_counter() - began) / count
