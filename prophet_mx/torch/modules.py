"""What the adapter does with the user's model: hooks before forward, buffers, and a DistributedDataParallel around it."""

import contextlib
import functools
from typing import Any, Callable, Dict, Iterator, List, NoReturn, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..errors import ConfigError
from .exchange import Exchange
from .tracked import Tracked

BROADCAST_BYTES = 250 * 1024 * 1024  # of buffers in one message, as DistributedDataParallel has it


class Hook:
    """A hook of a module. A copy or a pickle of the module has one that does nothing; where torch.compile meets one, the graph breaks."""

    def __init__(self, run: Callable[..., None]) -> None:
        self._run = run
        self._run_uncompiled = torch.compiler.disable(run)

    def __call__(self, *arguments: Any) -> None:
        if torch.compiler.is_compiling():
            self._run_uncompiled(*arguments)
        else:
            self._run(*arguments)

    def __deepcopy__(self, memo: Dict[int, Any]) -> "Hook":
        return Hook(_nothing)

    def __reduce__(self) -> Tuple[Any, ...]:
        return Hook, (_nothing,)


def _nothing(*_: Any) -> None:
    pass


def named_parameters(model: nn.Module) -> List[Tuple[str, nn.Parameter]]:
    """The parameters that are trained, each once, by name; without those that DistributedDataParallel was told to ignore."""
    if not isinstance(model, DistributedDataParallel):
        return [(name, param) for name, param in model.named_parameters() if param.requires_grad]
    ignored = model.parameters_to_ignore
    return [(name, param) for name, param in model.module.named_parameters() if param.requires_grad and name not in ignored]


def broadcast_all(model: nn.Module, group: dist.ProcessGroup) -> None:
    """Give all ranks rank 0's parameters and buffers. DistributedDataParallel has done so itself."""
    tensors = [tensor.detach() for tensor in [*model.parameters(), *model.buffers()]]
    if tensors:
        dist._broadcast_coalesced(group, tensors, BROADCAST_BYTES, 0)  # type: ignore[attr-defined]


class Model:
    """The model while its gradients are scheduled; :meth:`close` leaves it as it was."""

    def __init__(self, model: nn.Module, exchange: Exchange, group: dist.ProcessGroup, broadcast_buffers: bool) -> None:
        self._model, self._exchange, self._group = model, exchange, group
        self._ddp = model if isinstance(model, DistributedDataParallel) else None
        self._buffers = [] if self._ddp or not broadcast_buffers else [buffer for buffer in model.buffers() if buffer is not None]
        self._synchronizing = True  # not within no_sync
        self._synchronized = True  # the forward before this one was to be synchronised
        self._handles: List[Any] = [model.register_forward_pre_hook(Hook(self._before_forward), prepend=True)]
        self._compiled: List[nn.Module] = []  # in place, by Module.compile()
        self._hook_modules(model, {id(each.param): each for each in exchange.tracked})
        for each in exchange.tracked:
            self._handles.append(each.param.register_post_accumulate_grad_hook(Hook(_contributes(each, exchange))))
        if self._ddp is not None:
            self._ddp.require_backward_grad_sync = False  # its own reductions are off, also their checks
            self._ddp.no_sync = self.no_sync  # type: ignore[method-assign]
            self._ddp.join_hook = _refuse_join  # type: ignore[method-assign]

    def _hook_modules(self, module: nn.Module, tracked: Dict[int, Tracked]) -> None:
        """Have each module wait for its own parameters before its forward, and a compiled one for all in it: no graph has hooks in it."""
        whole = is_compiled(module)
        mine = [tracked[id(param)] for param in module.parameters(recurse=whole) if id(param) in tracked]
        if mine:
            wait = Hook(_waits_for(mine, self._exchange))
            if module._compiled_call_impl is not None:
                self._compiled.append(module)
                module._compiled_call_impl = _after(wait, module._compiled_call_impl)
            else:
                self._handles.append(module.register_forward_pre_hook(wait, prepend=True))
        if not whole:
            for child in module.children():
                self._hook_modules(child, tracked)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within, backward only adds to the gradients here. With DistributedDataParallel, forward decides, as it does there."""
        before, self._synchronizing = self._synchronizing, False
        if self._ddp is None:
            self._exchange.reducing = False
        try:
            yield
        finally:
            self._synchronizing = before
            if self._ddp is None:
                self._exchange.reducing = before

    def _before_forward(self, *_: Any) -> None:
        training = torch.is_grad_enabled()
        synchronized = self._synchronized
        if self._ddp is not None:
            self._ddp.require_forward_param_sync = synchronized
            self._synchronized = training and self._synchronizing
        if not training:
            return
        self._exchange.begin_forward()
        if self._ddp is not None:
            self._exchange.reducing = self._synchronizing
            return
        self._synchronized = self._synchronizing
        if self._buffers and self._model.training and synchronized:
            with self._exchange.waiting.blocked("the buffers of rank 0"):
                dist._broadcast_coalesced(self._group, self._buffers, BROADCAST_BYTES, 0)  # type: ignore[attr-defined]

    def close(self) -> None:
        """Take all hooks away, and let DistributedDataParallel reduce again."""
        for handle in self._handles:
            handle.remove()
        for module in self._compiled:
            module._compiled_call_impl = module._compiled_call_impl.__wrapped__  # type: ignore[union-attr]
        if self._ddp is not None:
            del self._ddp.no_sync, self._ddp.join_hook
            self._ddp.require_backward_grad_sync = True


def _refuse_join(**_: Any) -> NoReturn:
    raise ConfigError(
        "join() of a DistributedDataParallel cannot be scheduled; allowed: the same number of iterations on each rank, or policy='off'"
    )


def is_compiled(module: nn.Module) -> bool:
    """Whether this module is torch.compile's, or was compiled in place."""
    return module._compiled_call_impl is not None or isinstance(module, torch._dynamo.OptimizedModule)


def _after(wait: Callable[..., None], call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        wait()
        return call(*args, **kwargs)

    return compiled


def _waits_for(tracked: Sequence[Tracked], exchange: Exchange) -> Callable[..., None]:
    def before_forward(*_: Any) -> None:
        for each in tracked:
            if each.updating:
                exchange.release(each)

    return before_forward


def _contributes(tracked: Tracked, exchange: Exchange) -> Callable[..., None]:
    def after_backward(*_: Any) -> None:
        exchange.contribute(tracked)

    return after_backward
