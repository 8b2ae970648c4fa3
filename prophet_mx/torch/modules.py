"""What the adapter does with the user's model: hooks before forward, buffers, and a DistributedDataParallel around it."""

import contextlib
import logging
import weakref
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..config import Config
from ..errors import CollectiveError
from . import refusals, wrapped
from .compression import HookedDDP
from .exchange import Exchange
from .hooks import Hook, hook_forward, is_compiled
from .passes import in_no_pass
from .replicated import ddp_of, hook_ddp, is_replicated, no_sync
from .tracked import IDLE, Tracked
from .unscheduled import Unscheduled

logger = logging.getLogger("prophet_mx")

BROADCAST_BYTES = 250 * 1024 * 1024  # of buffers in one message, as DistributedDataParallel has it


def without_compiler(model: nn.Module) -> nn.Module:
    """The DistributedDataParallel, or the module of ``replicate()``, that was given to torch.compile; any other model as it is."""
    inner = getattr(model, "_orig_mod", None)
    return model if ddp_of(inner) is None else inner  # type: ignore[return-value]


def broadcast_all(model: nn.Module, group: dist.ProcessGroup) -> None:
    """Give all ranks rank 0's parameters and buffers. DistributedDataParallel has done so itself."""
    tensors = [tensor.detach() for tensor in [*model.parameters(), *model.buffers()]]
    if tensors:
        _broadcast(tensors, group)


def _broadcast(tensors: List[torch.Tensor], group: dist.ProcessGroup) -> None:
    dist._broadcast_coalesced(group, tensors, BROADCAST_BYTES, 0)  # type: ignore[attr-defined]


def broadcast_buffers(buffers: Sequence[torch.Tensor], group: dist.ProcessGroup) -> None:
    """Give all ranks rank 0's buffers, over a group of gloo."""
    if all(buffer.device.type == "cpu" for buffer in buffers):
        _broadcast(list(buffers), group)
    elif buffers:
        broadcast_from_accelerator(buffers, group)


def broadcast_from_accelerator(buffers: Sequence[torch.Tensor], group: dist.ProcessGroup) -> None:
    """The same through the processor's memory, as bytes, in one message."""
    with torch.no_grad():
        flat = torch.cat([buffer.contiguous().reshape(-1).view(torch.uint8) for buffer in buffers]).cpu()
        dist.broadcast(flat, dist.get_global_rank(group, 0), group=group)
        if dist.get_rank(group):
            parts = flat.to(buffers[0].device).split([buffer.nbytes for buffer in buffers])
            for buffer, part in zip(buffers, parts):
                buffer.copy_(part.clone().view(buffer.dtype).view(buffer.shape))


class Model:
    """The model while its gradients are scheduled; :meth:`close` leaves it as it was.

    Parameters
    ----------
    model, exchange : of the optimizer.
    group : for the buffers.
    broadcast_buffers : see ``ScheduledOptimizer``.
    allow_unused : called if a DistributedDataParallel that is met later allows for parameters without a gradient.
    unscheduled : is told when forward begins.
    round_ends : called when forward begins, as the program may have left out the ``step()`` before.
    """

    def __init__(
        self,
        model: nn.Module,
        exchange: Exchange,
        group: dist.ProcessGroup,
        broadcast_buffers: bool,
        allow_unused: Callable[[], None],
        unscheduled: Unscheduled,
        round_ends: Callable[[], None],
    ) -> None:
        self._model, self._exchange, self._group, self._allow_unused = model, exchange, group, allow_unused
        self._unscheduled, self._round_ends = unscheduled, round_ends
        self._wrapped: Optional[wrapped.Wrapped] = None
        self._foreign: Any = None  # a weak reference to one that was met last, and is none of ours
        self._looked_within = False
        self._hooked: Optional[HookedDDP] = None
        # By module, as a module may put another tensor in the place of a buffer.
        self._buffers: List[Dict[str, Any]] = [module._buffers for module in model.modules()] if broadcast_buffers else []
        # The buffers and their versions when they were those of rank 0; None where that is always so, and where it has been said that it is
        # not.
        self._seen: Optional[List[Tuple[torch.Tensor, int]]] = [] if self._buffers and dist.get_rank(group) else None
        self.begun = False  # a training's forward has begun since it was last asked
        self.called = False  # a training's forward went through the DistributedDataParallel since the last step()
        self._synchronizing = True  # not within no_sync
        self._synchronized = True  # the forward before this one was to be synchronised
        self._handles: List[Any] = []
        mine = {id(each.param): each for each in exchange.tracked}
        self._known = {id(param) for param in model.parameters()}
        self._hook_modules(model, mine)
        self._handles += exchange.homes.find(model, mine, exchange)
        ddp = ddp_of(model)
        if ddp is not None:
            self._take(ddp)
        else:
            self._before = hook_forward(model, self._before_forward)
        for each in exchange.tracked:
            self._handles.append(each.param.register_post_accumulate_grad_hook(Hook(_contributes(each, exchange))))

    def _take(self, ddp: DistributedDataParallel) -> None:
        """It no longer reduces, and says when forward begins, and when it gives all ranks rank 0's buffers."""
        self._wrapped, self._buffers, self._seen = wrapped.Wrapped(ddp, self._share), [], None
        self._before = hook_ddp(ddp, self._before_ddp_forward)

    def _hook_modules(self, module: nn.Module, tracked: Dict[int, Tracked]) -> None:
        """Have each module wait for its own parameters before its forward. A compiled one waits for all in it, as no graph has hooks in it,
        and so does attention, which does not call the module of its output, and chooses its way by the types of all parameters."""
        compiled = is_compiled(module)
        whole = compiled or isinstance(module, nn.MultiheadAttention)
        mine = [tracked[id(param)] for param in module.parameters(recurse=whole) if id(param) in tracked]
        if mine:
            self._handles.append(hook_forward(module, self._waits_for(mine, compiled)))
        if not whole:
            for child in module.children():
                self._hook_modules(child, tracked)

    def _waits_for(self, mine: Sequence[Tracked], compiled: bool) -> Callable[..., None]:
        exchange = self._exchange

        def before_forward(*_: Any) -> None:
            ddp = DistributedDataParallel._active_ddp_module
            if ddp is not None and (self._wrapped is None or ddp is not self._wrapped.ddp):
                self._meet(ddp)
            for each in mine:
                if each.updating:
                    exchange.release(each)
                elif compiled and each.stage != IDLE:
                    _make_plain(each, exchange)

        return before_forward

    def _meet(self, ddp: DistributedDataParallel) -> None:
        """The program is in the forward of a DistributedDataParallel that is not the one that leaves its gradients to the schedule."""
        if self._foreign is not None and self._foreign() is ddp:
            return
        if not wrapped.has_all(ddp, self._exchange.tracked, self._group):
            self._foreign = weakref.ref(ddp)
            return
        logger.info("a DistributedDataParallel is around the model; it leaves its gradients to the schedule from now on")
        self._before.remove()
        if self._wrapped is not None:
            self._wrapped.close()
        self._take(ddp)
        if wrapped.unused(ddp):
            self._exchange.end_round()
            self._allow_unused()
        self._before_ddp_forward()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within, backward only adds to the gradients here. With DistributedDataParallel, forward decides, as it does there."""
        before, self._synchronizing = self._synchronizing, False
        if self._wrapped is None:
            self._exchange.fill()  # what backward adds within is not a part of the round before
            self._exchange.reducing = False
        try:
            yield
        finally:
            self._synchronizing = before
            if self._wrapped is None:
                self._exchange.reducing = before

    def _before_forward(self, *_: Any) -> None:
        """Of a model without a DistributedDataParallel around it."""
        if self._seen is not None and not (torch.is_grad_enabled() and self._model.training):
            self._look_at_buffers()
        if not torch.is_grad_enabled():
            return
        ddp = DistributedDataParallel._active_ddp_module or ddp_of(self._model)
        if ddp is not None:
            self._meet(ddp)
            if self._wrapped is not None:
                return
        if not self._looked_within:
            self._looked_within = True
            refusals.refuse_within(self._model)
        synchronized, self._synchronized = self._synchronized, self._synchronizing
        self.begun = True
        self._begin()
        if self._buffers and self._model.training and synchronized:
            self._broadcast_buffers()

    def _broadcast_buffers(self) -> None:
        buffers = self._present_buffers()
        if not buffers:
            return
        with contextlib.ExitStack() as stack:
            for buffer in buffers:  # as DistributedDataParallel: a forward before this one may have saved it for its backward
                stack.enter_context(torch.autograd._unsafe_preserve_version_counter(buffer))
            self._share(buffers)
        if self._seen is not None:
            self._seen = [(buffer, buffer._version) for buffer in buffers]

    def _present_buffers(self) -> List[torch.Tensor]:
        found = [buffer for some in self._buffers for buffer in some.values() if buffer is not None]
        return list({id(buffer): buffer for buffer in found}.values())

    def _look_at_buffers(self) -> None:
        """An evaluation begins, in which other ranks need not take part: say once that the buffers are not those of rank 0."""
        if not self._seen:
            return
        now = self._present_buffers()
        if len(now) != len(self._seen) or any(a is not b or a._version != version for a, (b, version) in zip(now, self._seen)):
            self._seen = None
            logger.warning(
                "the model is evaluated with this rank's own buffers, as of BatchNorm; with rank 0's, where a DistributedDataParallel is "
                "around it and is called"
            )

    def _before_ddp_forward(self, *_: Any) -> None:
        assert self._wrapped is not None
        training = torch.is_grad_enabled()
        wanted = self._wrapped.synchronizing() and self._synchronizing
        self._wrapped.ddp.require_forward_param_sync = self._synchronized
        self._synchronized = training and wanted
        self.called, self.begun = self.called or training, self.begun or training
        if self._exchange.paused:
            self._unscheduled.look_for_unfrozen()
            self._wrapped.reduce(wanted)
        elif training:
            self._begin()
            self._exchange.reducing = wanted

    def refuse_replaced(self) -> None:
        """No parameter had a gradient. CollectiveError if there are others in their place, which have: nobody would reduce those."""
        for name, param in self._model.named_parameters():
            if id(param) not in self._known and param.grad is not None:
                raise CollectiveError(
                    f"parameter {name!r} is another one than when the ScheduledOptimizer was made, as after "
                    "load_state_dict(..., assign=True) or fully_shard(): its gradients are not reduced. Make the optimizers after that"
                )

    def _share(self, buffers: Sequence[torch.Tensor]) -> bool:
        """Give all ranks rank 0's buffers; False if a DistributedDataParallel, in whose place this is, is to do so itself."""
        if self._exchange.paused:
            return False
        with self._exchange.waiting.blocked("the buffers of rank 0"):
            broadcast_buffers(buffers, self._group)
        return True

    def _begin(self) -> None:
        self._unscheduled.forward_begins()
        self._exchange.begin_forward()
        self._round_ends()

    @property
    def unfrozen(self) -> bool:
        """Whether a parameter was unfrozen here. :attr:`ddp` alone would train it by gradients that are not reduced."""
        return self._unscheduled.unfrozen

    @property
    def ddp(self) -> Optional[DistributedDataParallel]:
        """The DistributedDataParallel that leaves its gradients to the schedule, and can reduce them as well as not.

        One that is not told of parameters without a gradient, as ScheduledOptimizer is, cannot.
        """
        ddp = None if self._wrapped is None else self._wrapped.ddp
        if (
            ddp is None
            or ddp.static_graph
            or ddp_of(self._model) is not ddp
            and is_replicated(ddp)
            or (self._exchange.rounds.unused and not wrapped.unused(ddp))
        ):
            return None
        return ddp  # type: ignore[no-any-return]

    def pause(self, config: Config) -> None:
        """From the next forward on :attr:`ddp` reduces, and compresses as the settings say, until :meth:`resume`."""
        self._exchange.pause()
        if self._hooked is None and self.ddp is not None:
            self._hooked = HookedDDP(self.ddp, config)

    def resume(self) -> None:
        """It leaves its gradients to the schedule again."""
        self._exchange.paused = False

    def no_sync_alone(self) -> ContextManager[None]:
        """A context in which :attr:`ddp` does not reduce."""
        return no_sync(self._model, self._wrapped.ddp)  # type: ignore[union-attr]

    def go_on_alone(self) -> None:
        """After :meth:`close`, it compresses as it did after :meth:`pause`."""
        if self._hooked is not None:
            self._hooked.active = True

    def close(self) -> None:
        """Take all hooks away, and let DistributedDataParallel reduce again."""
        for handle in [self._before, *self._handles]:
            handle.remove()
        if self._wrapped is not None:
            self._wrapped.ddp.require_forward_param_sync = self._synchronized
            self._wrapped.close()
        if self._hooked is not None:
            self._hooked.active = False
        self._unscheduled.close()


def _make_plain(tracked: Tracked, exchange: Exchange) -> None:
    """A compiled graph uses the parameter, which has no update under way: no guard is a part of a graph. Return when the sum is there. The
    parameter stays guarded while backward has begun and not given all gradients."""
    if in_no_pass():
        exchange.fill()
        if not exchange.in_backward():
            if tracked.hidden:
                exchange.expose(tracked)
            tracked.settle()


def _contributes(tracked: Tracked, exchange: Exchange) -> Callable[..., None]:
    def after_backward(*_: Any) -> None:
        exchange.contribute(tracked)

    return after_backward
