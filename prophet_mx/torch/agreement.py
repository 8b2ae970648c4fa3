"""What all ranks settle together before they begin: their groups, that they train the same model, and what a collective costs.

Everything here is collective: all ranks call it at the same point of the program, with nothing else under way in the group.
"""

import logging
import os
import time
from datetime import timedelta
from typing import Any, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from ..config import Config
from ..errors import ConfigError, ProfileError
from ..planning.rounds import GUESS
from ..planning.unit_sizes import CollectiveCost
from ..policies import OFF
from ..profiling.gradient_profile import GradientProfile
from .strategies import OUTSTANDING, Strategy
from .streams import streams_of
from .tracked import Tracked

logger = logging.getLogger("prophet_mx")

PROBE_SMALL = 1024  # bytes: next to nothing but the start-up
PROBE_LARGE = (1 << 18, 1 << 20, 1 << 22)  # bytes: the largest that does not take long
PROBE_SECONDS = 0.05  # a collective that takes longer is large enough to tell the rate


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
    _seconds(group, strategy, torch.zeros(PROBE_SMALL // 4, device=device), 8)
    # The least of many short looks: while others use the processors, one takes several times as long.
    startup = min(_seconds(group, strategy, torch.zeros(PROBE_SMALL // 4, device=device), 8) for _ in range(16))
    rate = GUESS.rate
    for size in PROBE_LARGE:
        seconds = torch.tensor([_seconds(group, strategy, torch.zeros(size // 4, device=device), 3 * OUTSTANDING)], device=device)
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
