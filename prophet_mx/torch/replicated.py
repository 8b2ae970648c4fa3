"""Modules to which ``torch.distributed._composable.replicate()`` was applied, as torchtitan does it: there is a DistributedDataParallel,
but around a list of the parameters alone. It is not called itself: hooks of the module call its methods before and after forward. It is
made in the first forward, and nobody sees it."""

import contextlib
import sys
from typing import Any, Callable, Iterator, Optional

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .hooks import hook_forward, untraced

BEFORE = "_pre_forward"  # what replicate() calls before a forward


def state_of(module: nn.Module) -> Any:
    """What ``replicate()`` keeps of this module; None if it was not applied to it."""
    made = sys.modules.get("torch.distributed._composable.replicate")
    if made is None or "replicate" not in (sys.modules[f"{made.__package__}.contract"]._get_registry(module) or ()):
        return None
    return made.replicate.state(module)  # None for that of FSDP, which has the same name


def ddp_of(module: Any) -> Optional[DistributedDataParallel]:
    """The DistributedDataParallel that reduces this module's gradients: itself, or that of ``replicate()``, which is made now at the
    latest. None if there is none."""
    if isinstance(module, DistributedDataParallel):
        return module
    state = state_of(module) if isinstance(module, nn.Module) and dist.is_available() and dist.is_initialized() else None
    if state is None:
        return None
    if state._init_args or state._init_kwargs:
        getattr(state, "lazy_init", int)()  # an old PyTorch has none: the second forward finds it
    return getattr(state, "_ddp", None)


def is_replicated(ddp: DistributedDataParallel) -> bool:
    """Whether ``replicate()`` has made it."""
    return isinstance(ddp.module, nn.ParameterList)


def no_sync(module: nn.Module, ddp: DistributedDataParallel) -> Any:
    """A context in which the DistributedDataParallel of :func:`ddp_of` does not reduce."""
    return ddp.no_sync() if module is ddp else _no_sync(state_of(module))


@contextlib.contextmanager
def _no_sync(state: Any) -> Iterator[None]:
    before, state._no_sync = state._no_sync, True
    try:
        yield
    finally:
        state._no_sync = before


def hook_ddp(ddp: DistributedDataParallel, run: Callable[..., None]) -> Any:
    """Run this before each forward of a DistributedDataParallel; a handle whose ``remove()`` ends that."""
    return _Before(ddp, run) if is_replicated(ddp) else hook_forward(ddp, run)


class _Before:
    """In place of the method BEFORE: runs something before it."""

    def __init__(self, ddp: DistributedDataParallel, run: Callable[..., None]) -> None:
        self._ddp, self._run = ddp, run
        setattr(ddp, BEFORE, self)

    @untraced
    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self._run(self._ddp)
        return getattr(type(self._ddp), BEFORE)(self._ddp, *arguments, **named)

    def remove(self) -> None:
        """It runs no longer."""
        if vars(self._ddp).get(BEFORE) is self:
            delattr(self._ddp, BEFORE)
