"""A DistributedDataParallel around the model: what it does itself, and what it leaves to the schedule.

It may be given, or met in a forward: a user or a framework has put it around a module that is scheduled. Then it is adopted, or refused.
"""

from typing import Any, Callable, Dict, List, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..errors import ConfigError
from . import refusals
from .compression import hook_name, name_of
from .hooks import untraced
from .replicated import BEFORE, ddp_of, hook_ddp, is_replicated
from .strategies import ANY_ORDER, backend_for
from .tracked import Tracked

RIGHT = "allowed: the DistributedDataParallel itself, ScheduledOptimizer(ddp, optimizer)"


class _Held(int):
    """A truth value that an attribute has while it is ours, and what it is for the program (``wanted``): copies have that."""

    wanted: bool

    def __reduce__(self) -> Tuple[Any, ...]:
        return bool, (self.wanted,)


def _held(value: bool, wanted: bool) -> _Held:
    held = _Held(value)
    held.wanted = wanted
    return held


class _Refused:
    """In place of a method of REFUSED. A copy of the DistributedDataParallel has its own."""

    def __init__(self, ddp: DistributedDataParallel, method: str) -> None:
        self._ddp, self._method = ddp, method

    @untraced
    def __call__(self, *arguments: Any, **named: Any) -> None:
        raise ConfigError(REFUSED[self._method](*arguments, **named))

    def __reduce__(self) -> Tuple[Any, ...]:
        return getattr, (self._ddp, self._method)


def _no_join(**_: Any) -> str:
    return "join() of a DistributedDataParallel cannot be scheduled; allowed: the same number of iterations on each rank, or policy='off'"


def _no_hook(*arguments: Any, **named: Any) -> str:
    hook = [*arguments, *named.values()][-1]
    return f"the communication hook {name_of(hook)} would not be called; allowed: one from before ScheduledOptimizer(), or compress="


BROADCAST = "_distributed_broadcast_coalesced"  # the method that sends buffers

# Methods that have no place beside a schedule, and what the error of each says.
REFUSED: Dict[str, Callable[..., str]] = {"join_hook": _no_join, "register_comm_hook": _no_hook, "_register_builtin_comm_hook": _no_hook}


class _Shared:
    """In place of BROADCAST. A copy of the DistributedDataParallel has its own."""

    def __init__(self, ddp: DistributedDataParallel, share: Callable[[Sequence[torch.Tensor]], bool]) -> None:
        self._ddp, self._share = ddp, share

    @untraced
    def __call__(self, tensors: Sequence[torch.Tensor], *more: Any) -> None:
        if not self._share(tensors):
            getattr(type(self._ddp), BROADCAST)(self._ddp, tensors, *more)

    def __reduce__(self) -> Tuple[Any, ...]:
        return getattr, (self._ddp, BROADCAST)


class Wrapped:
    """A DistributedDataParallel whose own reductions are off, also their checks, until :meth:`close`.

    If its group's collectives may not be under way beside those of gradients, ``share`` is called for the buffers; False: it is to send
    them itself.
    """

    def __init__(self, ddp: DistributedDataParallel, share: Callable[[Sequence[torch.Tensor]], bool]) -> None:
        self.ddp: Any = ddp
        if backend_for(next(ddp.parameters()).device, ddp.process_group) != ANY_ORDER:
            setattr(ddp, BROADCAST, _Shared(ddp, share))
        for method in REFUSED:
            setattr(ddp, method, _Refused(ddp, method))
        if ddp.static_graph:  # else the end of the first backward finishes reductions that have not begun
            self.ddp._static_graph_delay_allreduce_enqueued = _held(True, self.ddp._static_graph_delay_allreduce_enqueued)
        self.synchronizing()

    def synchronizing(self) -> bool:
        """Whether the program wants the backward of this forward to be reduced: by ``no_sync()``, or by the attribute that it sets."""
        found = self.ddp.require_backward_grad_sync
        wanted = found.wanted if isinstance(found, _Held) else bool(found)
        self.ddp.require_backward_grad_sync = _held(False, wanted)
        return wanted

    def reduce(self, now: bool) -> None:
        """After :meth:`synchronizing`: whether it reduces this once, although it has left its gradients to the schedule."""
        self.ddp.require_backward_grad_sync = _held(now, self.ddp.require_backward_grad_sync.wanted)

    def close(self) -> None:
        """It reduces again."""
        for method in REFUSED:
            delattr(self.ddp, method)
        vars(self.ddp).pop(BROADCAST, None)
        self.ddp.require_backward_grad_sync = self.synchronizing()
        if self.ddp.static_graph:
            self.ddp._static_graph_delay_allreduce_enqueued = False
            if is_replicated(self.ddp):
                hook_ddp(self.ddp, _Rebuild())
            else:
                self.ddp.register_forward_pre_hook(_Rebuild(), prepend=True)


class _Rebuild:
    """Before the next forward, gives a DistributedDataParallel with a static graph a new reducer, as a copy has one.

    The old one is wrong after backward passes that it did not reduce, as PyTorch's own are within ``no_sync()``.
    """

    @untraced
    def __call__(self, ddp: Any, *_: Any) -> None:
        vars(ddp).pop(BEFORE, None)
        for key, hook in list(ddp._forward_pre_hooks.items()):
            if hook is self:
                del ddp._forward_pre_hooks[key]
        params, sparse = ddp._build_params_for_reducer()
        ddp._ddp_init_helper(params, sparse, ddp._build_debug_param_to_name_mapping(params), True)
        ddp.reducer._set_static_graph()
        ddp.logger._set_static_graph()


def named_parameters(model: nn.Module, trained: bool = True) -> List[Tuple[str, nn.Parameter]]:
    """The parameters that are trained, or those that are not, each once, by name; without those that DistributedDataParallel was told to
    ignore."""
    ddp = ddp_of(model)
    named = (model.module if ddp is model else model).named_parameters()
    ignored = model.parameters_to_ignore if ddp is model else ()
    theirs = None if ddp is None or ddp is model else {id(param) for param in ddp.parameters()}
    return [
        (name, param)
        for name, param in named
        if param.requires_grad is trained and name not in ignored and (theirs is None or id(param) in theirs)
    ]


def has_all(ddp: DistributedDataParallel, tracked: Sequence[Tracked], group: dist.ProcessGroup) -> bool:
    """Whether it has these parameters, which are scheduled in ``group``; False if it has none of them.

    Raises ConfigError if it has others as well, or cannot leave them to the schedule.
    """
    mine = {id(each.param) for each in tracked}
    theirs = {id(param): name for name, param in named_parameters(ddp)}
    if not mine & theirs.keys():
        return False
    more = [name for key, name in theirs.items() if key not in mine]
    less = [each.name for each in tracked if id(each.param) not in theirs]
    if more or less:
        what = f"reduces {more[0]!r} as well" if more else f"does not reduce {less[0]!r}"
        raise ConfigError(f"the DistributedDataParallel around the model {what}; {RIGHT}")
    refusals.check_ddp(ddp)
    name = hook_name(ddp)
    if name is not None:
        raise ConfigError(f"the DistributedDataParallel around the model has the communication hook {name}; {RIGHT}, or compress=")
    if dist.get_process_group_ranks(ddp.process_group) != dist.get_process_group_ranks(group):
        raise ConfigError(f"the DistributedDataParallel around the model is for other ranks; {RIGHT}")
    return True


def unused(ddp: DistributedDataParallel) -> bool:
    """Whether it allows for parameters without a gradient."""
    return bool(ddp.find_unused_parameters or ddp.static_graph)
