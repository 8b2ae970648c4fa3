"""16 bits on the wire: who asks for them. The setting ``compress`` does, and so does a communication hook of DistributedDataParallel."""

import logging
from dataclasses import replace
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from ..config import Config
from ..errors import ConfigError
from .hooks import untraced
from .strategies import AllReduce, CompressedAllReduce

logger = logging.getLogger("prophet_mx")

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_SETTINGS = {bf16_compress_hook: "bf16", fp16_compress_hook: "fp16"}
_BUILT_IN = {str(dist.BuiltinCommHookType.FP16_COMPRESS): "fp16"}
ALLOWED = "allowed: no hook (but compress='bf16' or compress='fp16'), or bf16_compress_hook or fp16_compress_hook"


def settled(ddp: Optional[DistributedDataParallel], config: Config) -> Config:
    """The settings, with ``compress`` as a hook of ``ddp`` asks for it. ConfigError if the hook does anything else."""
    name = None if ddp is None else hook_name(ddp)
    if ddp is None or name is None:
        return config
    found = _setting_of(ddp)
    if found is None:
        raise ConfigError(f"model is a DistributedDataParallel with the communication hook {name}; {ALLOWED}")
    if config.compress not in (None, found):
        raise ConfigError(
            f"compress={config.compress!r}, but the DistributedDataParallel has the hook {name}; allowed: only one of the two"
        )
    return replace(config, compress=found)


def hook_name(ddp: DistributedDataParallel) -> Optional[str]:
    """The name of its communication hook; None if it has none, or one of ours."""
    if _ours(ddp) is not None:
        return None
    if ddp._comm_hooks:
        return name_of(ddp._comm_hooks[-1][0])
    return ddp._get_ddp_logging_data().get("comm_hook") or None


def name_of(hook: Any) -> str:
    """What a communication hook is called."""
    return str(getattr(hook, "__qualname__", hook))


def _setting_of(ddp: DistributedDataParallel) -> Optional[str]:
    """What ``compress`` is to be by its hook; None if the hook is another."""
    if not ddp._comm_hooks:
        return _BUILT_IN.get(str(hook_name(ddp)))
    [(hook, state)] = ddp._comm_hooks
    theirs = dist.group.WORLD if state is None else state
    if hook in _SETTINGS and _ranks(theirs) != _ranks(ddp.process_group):
        raise ConfigError(
            f"the hook {name_of(hook)} reduces within another group than its DistributedDataParallel; allowed: the same ranks"
        )
    return _SETTINGS.get(hook)


def _ranks(group: Any) -> Any:
    return sorted(dist.get_process_group_ranks(group)) if isinstance(group, dist.ProcessGroup) else None


def strategy_for(config: Config, group: dist.ProcessGroup) -> AllReduce:
    """What sums gradients over ``group``. Rank 0's log says if it rounds them."""
    if config.compress is None:
        return AllReduce(group)
    if group.rank() == 0:
        logger.info("gradients travel as %s: sums are rounded", str(DTYPES[config.compress]).replace("torch.", ""))
    return CompressedAllReduce(group, DTYPES[config.compress])


class HookedDDP:
    """A DistributedDataParallel that compresses as the settings say, where it reduces the gradients itself; its own hook may do so already.

    Attribute ``active``: it does. A hook cannot be taken away: without it, this one does what DistributedDataParallel does without any.
    """

    def __init__(self, ddp: DistributedDataParallel, config: Config) -> None:
        self.active = True
        if config.compress is None or hook_name(ddp) is not None:
            return
        ours = _ours(ddp)
        if ours is None:
            ours = _Hook()
            DistributedDataParallel.register_comm_hook(ddp, ddp.process_group, ours.run)
        ours.owner, ours.compress = self, bf16_compress_hook if config.compress == "bf16" else fp16_compress_hook


class _Hook:
    """One that compresses while its owner is active. Not PyTorch's itself: without NCCL, that for bfloat16 is refused by its name, although
    gloo sums such numbers as well."""

    owner: HookedDDP
    compress: Callable[..., "torch.futures.Future[torch.Tensor]"]

    @untraced
    def run(self, group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The mean of a bucket."""
        if self.owner.active:
            return self.compress(group, bucket)
        future = dist.all_reduce(bucket.buffer().mul_(1.0 / group.size()), group=group, async_op=True).get_future()
        return future.then(lambda done: done.value()[0])  # type: ignore[no-any-return]


def _ours(ddp: DistributedDataParallel) -> Optional[_Hook]:
    """The hook that an earlier :class:`HookedDDP` has left."""
    for hook, _ in ddp._comm_hooks:
        owner = getattr(hook, "__self__", None)
        if isinstance(owner, _Hook):
            return owner
    return None
