"""``ScheduledOptimizer``: what a training script sees."""

import functools
import os
import weakref
from statistics import median
from typing import Any, Callable, ContextManager, Dict, List, Optional

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..config import Config
from ..errors import ConfigError
from ..monitoring.metrics import PlainIterations, set_up_logging
from ..monitoring.timeline import wanted
from ..policies import OFF
from . import agreement, refusals, wrapped
from .compression import HookedDDP, settled, strategy_for
from .ending import Parts, dropped, end_at_exit, others_open
from .exchange import Exchange
from .modules import Model, broadcast_all, without_compiler
from .monitor import Monitor, Stats
from .process_groups import OwnGroups
from .rounds import Channel
from .strategies import backend_for
from .streams import streams_of
from .tracked import Tracked
from .trial import Trial
from .unscheduled import Unscheduled
from .updates import Groups, step_hooks
from .waiting import Waiting


class ScheduledOptimizer(torch.optim.Optimizer):
    """Runs an optimizer so that gradients travel in the order in which the next forward needs them.

    ``step()`` returns at once. The user's own optimizer updates a parameter when the sum of its gradients has arrived; code that
    uses the parameter earlier waits for the update. All results are those of DistributedDataParallel.

    Parameters
    ----------
    model : a module, or a DistributedDataParallel around one.
    optimizer : an optimizer of the model's parameters; the two share its groups and its state.
    find_unused_parameters : whether some parameters may get no gradient in an iteration; None for what the DistributedDataParallel has.
    broadcast_buffers : whether each forward in training starts with rank 0's buffers; only for a plain module.
    process_group : the ranks that train together, None for all (or the DistributedDataParallel's own).
    settings : fields of :class:`~prophet_mx.Config`, such as ``policy``, ``unit``, ``warmup``; each overrides its ``PROPHET_`` variable.
        Those of the traffic to servers (``groups``, ``drain``, ``bandwidth``, ``message_cost``, ``window``, ``lead``) are not allowed.

    Raises
    ------
    ConfigError
        a setting has a wrong value or no effect here, the ranks have different settings, or the model or the optimizer cannot be scheduled.
    ProfileError
        the file that rank 0's settings name for the profile holds none.
    """

    # So that GradScaler unscales gradients and looks for infinite ones itself: it would tell a fused optimizer of them by attributes, which
    # are gone when the updates are done.
    _step_supports_amp_scaling = False

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        find_unused_parameters: Optional[bool] = None,
        broadcast_buffers: bool = True,
        process_group: Optional[dist.ProcessGroup] = None,
        **settings: Any,
    ) -> None:
        # The base class is not initialised: groups, state, defaults and hooks are those of the user's optimizer.
        self._inner = optimizer
        self._exchange: Optional[Exchange] = None
        self._monitor: Optional[Monitor] = None
        self._plain: Optional[PlainIterations] = None  # log lines of a job that is not scheduled
        config = Config.from_env(**settings)
        refusals.check_settings(settings, os.environ)
        model = without_compiler(model)
        named = wrapped.named_parameters(model) if isinstance(model, nn.Module) else []
        ddp = model if isinstance(model, DistributedDataParallel) else None
        config = settled(ddp, config)
        refusals.check(model, optimizer, named, config)
        set_up_logging(config)
        self._config = config
        self._iteration = 0
        self._alone: Optional[DistributedDataParallel] = None  # what the job goes on with, as it is faster
        if config.policy == OFF and ddp is not None:
            HookedDDP(ddp, config)
            self._plain = PlainIterations(config.log_every) if config.log_every else None
            self._made = True
            return
        if not dist.is_available() or not dist.is_initialized():
            raise ConfigError("torch.distributed is not initialised; call torch.distributed.init_process_group() first")
        parent, device = process_group if ddp is None else ddp.process_group, named[0][1].device
        refusals.check_order(model, backend_for(device, parent), others_open())
        unused = ddp is not None and wrapped.unused(ddp) if find_unused_parameters is None else find_unused_parameters
        self._lazy = refusals.steps_lazily(optimizer)
        groups = OwnGroups(parent, config, device)
        self._group = groups.new()
        tracked = [Tracked(param, name, index) for index, (name, param) in enumerate(named)]
        agreement.check_same(self._group, tracked, config, (unused, ddp is None, broadcast_buffers))
        if ddp is None:
            broadcast_all(model, self._group)
        strategy = strategy_for(config, self._group)
        planning = agreement.Planning(self._group, strategy, tracked, config)
        plan = planning.begin(agreement.saved_profile(self._group, tracked, config))
        waiting = Waiting(config, dist.get_rank())
        self._monitor = Monitor(config, [each.name for each in tracked], waiting, dist.get_rank(), self._group.size())
        streams = streams_of(each.param for each in tracked)
        self._exchange = Exchange(tracked, Channel(strategy, waiting, self._monitor.traffic, streams, unused, groups.new_beside))
        self._exchange.install(plan)
        self._groups = Groups(optimizer, tracked)
        for each in tracked:
            each.watch(self._exchange)
        # For what the caller's thread sends while collectives of gradients are under way. See the order of collectives in reducer.py.
        self._control = groups.new_beside()
        self._learner = agreement.Learner(self._exchange, planning, config, self._control, plan)
        allow_unused = _weakly(self._allow_unused) if find_unused_parameters is None else _nothing
        self._unscheduled = Unscheduled(optimizer, self._exchange, wrapped.named_parameters(model, trained=False), self._lazy)
        self._model = Model(
            model, self._exchange, self._control, broadcast_buffers, allow_unused, self._unscheduled, self._learner.round_ends
        )
        tries = config.fallback == "auto" and config.policy != OFF
        self._trial = Trial(self._exchange, self._model, config, self._control) if tries else None
        self._saving = optimizer.register_state_dict_pre_hook(_weakly(self._await_updates))
        self._parts = Parts(self._exchange, self._model, self._monitor, groups.made)
        self._finalizer = weakref.finalize(self, dropped, self._parts)
        end_at_exit(self._exchange, self._monitor, _weakly(self._leave), self._finalizer)
        self._made = True

    # -- what an optimizer has ---------------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        if name in ("_inner", "_made"):
            raise AttributeError(name)  # while this object is made
        found = getattr(self._inner, name)
        return _after(self._await_updates, found) if getattr(found, "__self__", None) is self._inner else found

    def __setattr__(self, name: str, value: Any) -> None:
        """What the user's optimizer has is set there, as its ``step()`` reads it."""
        ours = name in vars(self) or name in vars(ScheduledOptimizer) or name in _OF_STEP or not getattr(self, "_made", False)
        if name in _SHARED or not ours and hasattr(self._inner, name):
            setattr(self._inner, name, value)
        else:
            super().__setattr__(name, value)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The user's own optimizer, after all updates."""
        self._await_updates()
        return self._inner

    @property
    def param_groups(self) -> List[Dict[str, Any]]:  # type: ignore[override]
        """The user's optimizer's own groups."""
        return self._inner.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The user's optimizer's own state, after all updates."""
        self._await_updates()
        return self._inner.state

    @property
    def defaults(self) -> Dict[str, Any]:  # type: ignore[override]
        """The user's optimizer's own defaults."""
        return self._inner.defaults

    def __repr__(self) -> str:
        return f"ScheduledOptimizer({self._inner!r})"

    def __getstate__(self) -> Dict[str, Any]:
        raise ConfigError("a ScheduledOptimizer cannot be copied or pickled; save its state_dict(), or copy its attribute optimizer")

    def state_dict(self) -> Dict[str, Any]:
        """The user's optimizer's, after all updates."""
        self._await_updates()
        return self._inner.state_dict()

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """As of the user's optimizer, after all updates."""
        self._await_updates()
        self._inner.load_state_dict(state_dict)

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """As of the user's optimizer; ConfigError if a parameter is not one of those whose gradients are reduced."""
        self._await_updates()
        self._inner.add_param_group(param_group)
        if self._exchange is not None:
            self._groups.find()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As of the user's optimizer; it waits for nothing if ``set_to_none``."""
        if self._exchange is None:
            self._inner.zero_grad(set_to_none)
        else:
            self._follow_groups()
            (self._inner if self._exchange.paused else self._exchange).zero_grad(set_to_none)

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:  # type: ignore[override]
        """Start the update of all parameters that have gradients, with the current hyperparameters, and return.

        Raises
        ------
        CollectiveError
            backward made no gradient for some parameters, or made them for others that took their place, or gradients can no longer be
            reduced.
        """
        if self._exchange is None:
            if self._plain is not None:
                self._plain.pushed(None)
            return self._inner.step(closure)
        self._inner._opt_called = True  # type: ignore[attr-defined]  # for schedulers that were given the user's optimizer
        with self._unscheduled.within_step():
            if self._lazy and not self._exchange.paused:
                loss = self._step_lazily(self._exchange, closure)
            else:
                loss = self._step_whole(self._exchange, closure)
        self._iteration += 1
        if not self._exchange.paused:
            self._learner.round_ends()
        if self._monitor is not None:
            self._monitor.iteration_ends(self._iteration)
        if self._trial is not None and not self._exchange.recording and self._trial.iteration_ends():
            self._go_on_alone()
        return loss

    def _step_lazily(self, exchange: Exchange, closure: Optional[Callable[[], Any]]) -> Any:
        """Updates happen as sums arrive. The hooks of ``step()`` get this object, whose state is the one after all updates."""
        loss = None
        with step_hooks(self._inner, self):
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            self._follow_groups()
            self._unscheduled.step_begins()
            if not exchange.step(self._inner):
                self._model.refuse_replaced()
        return loss

    def _step_whole(self, exchange: Exchange, closure: Optional[Callable[[], Any]]) -> Any:
        """The optimizer runs now, as DistributedDataParallel reduces, or it is not known to treat each parameter by itself."""
        self._follow_groups()
        self._unscheduled.step_begins()
        if closure is not None:
            return self._inner.step(lambda: self._gathered(exchange, closure()))
        self._gathered(exchange)
        return self._inner.step()

    def _gathered(self, exchange: Exchange, loss: Any = None) -> Any:
        """The loss, once all sums are in ``grad``."""
        if not exchange.paused and not exchange.gather():
            self._model.refuse_replaced()
        return loss

    # -- what it has besides -----------------------------------------------------------------------------------------------

    def no_sync(self) -> ContextManager[None]:
        """A context in which backward only accumulates gradients on this rank; a DistributedDataParallel's ``no_sync()`` does the same."""
        if self._exchange is None:
            if self._alone is not None:
                return self._alone.no_sync()
            if "_parts" not in vars(self):
                raise ConfigError("no_sync() is the DistributedDataParallel's own with policy='off'")
            raise ConfigError("no_sync() of a ScheduledOptimizer that is closed; allowed: the DistributedDataParallel's own, or a new one")
        return self._model.no_sync()

    def synchronize(self) -> None:
        """Return when all updates that ``step()`` has started are done, and no sum is under way: the program may start collectives of its
        own, whatever the backend. Reading a parameter waits for its update in any case."""
        self._await_updates()
        if self._exchange is not None:
            self._exchange.settle()

    # -- what it shows -----------------------------------------------------------------------------------------------------

    def stats(self) -> Stats:
        """What this rank has reduced, learned and waited for so far; returns at once. The keys are those of
        :class:`~prophet_mx.torch.Stats`; only ``policy`` if DistributedDataParallel does everything itself."""
        if self._monitor is None:
            return {"policy": OFF}
        stats = self._monitor.stats(self._iteration, self._learner.plan, self._learner.plans, self._unscheduled.reasons)
        if self._trial is not None and self._trial.times is not None:
            stats["scheduled_seconds"], stats["ddp_seconds"] = (median(times) for times in self._trial.times)
        if self._alone is not None:
            stats["policy"] = OFF
        return stats

    def counters(self) -> Dict[str, Any]:
        """The counters of which :func:`prophet_mx.metrics.between` makes figures; empty where DistributedDataParallel does everything."""
        return {} if self._monitor is None else self._monitor.snapshot()

    def timeline_start(self, path: str, limit: Optional[int] = None) -> str:
        """Start writing a trace of this rank with the next iteration, for Perfetto, ``chrome://tracing`` and ``prophet-mx report``.

        Parameters
        ----------
        path : of the file, in a folder that exists. The rank is put into its name: ``trace.json`` becomes ``trace-0.json``, and
            ``{rank}`` is replaced. An old file of this name is replaced.
        limit : its largest size in bytes (default: ``Config.timeline_limit``). Once half of it is used, only some iterations are written.

        Returns
        -------
        str
            the path of the file, which is valid JSON after every write, several times a second.

        Raises
        ------
        ConfigError
            the path or the limit is not allowed, the file cannot be created, a timeline is being written already, or nothing is scheduled.
        """
        config = wanted(path, limit, self._config)
        if self._exchange is None or self._monitor is None:
            raise ConfigError("a timeline shows scheduled traffic, and nothing is scheduled here; allowed: policy='prophet'")
        return self._monitor.start_timeline(config)

    def timeline_stop(self) -> Optional[str]:
        """End the trace. The path of the file, None if none was being written."""
        return None if self._monitor is None else self._monitor.stop_timeline()

    def close(self) -> None:
        """Finish all updates, end the threads, and leave model and optimizer as they were. May be called again."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            self._finalizer.detach()
            self._saving.remove()
            self._parts.close()

    def _leave(self) -> None:
        """In a forked child."""
        self._exchange = self._monitor = None
        self._finalizer.detach()
        self._parts.leave()

    # -- inside ------------------------------------------------------------------------------------------------------------

    def _go_on_alone(self) -> None:
        """DistributedDataParallel is faster. All ranks are here, at the end of ``step()``."""
        self._alone = self._model.ddp
        assert self._alone is not None
        with self._parts.exchange.waiting.blocked("the other ranks, before the schedule ends"):
            dist.barrier(self._alone.process_group)  # nobody destroys a group that another still uses
        self.close()
        self._model.go_on_alone()

    def _allow_unused(self) -> None:
        """From now on some parameters may have no gradient. No gradient of this round is there yet, on any rank."""
        exchange = self._exchange
        if exchange is not None and not exchange.rounds.unused:
            exchange.finish()
            exchange.rounds.unused = True
            exchange.install(self._learner.plan)

    def _await_updates(self) -> None:
        """Sums that no update waits for may still be under way."""
        if self._exchange is not None:
            self._exchange.synchronize()

    def _follow_groups(self) -> None:
        """See whether the program has changed which parameters are in which group."""
        if self._groups.changed():
            self._await_updates()
            self._groups.find()


# Set on the user's optimizer in any case; and never, as PyTorch's schedulers set them on the one that they were given.
_SHARED = frozenset(["param_groups", "state", "defaults"])
_OF_STEP = frozenset(["step", "_opt_called", "_step_count"])


def _nothing() -> None:
    pass


def _after(wait: Callable[[], None], method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of the user's optimizer, which may read its state, after all updates."""

    @functools.wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        wait()
        return method(*arguments, **named)

    return call


def _weakly(method: Callable[[], None]) -> Callable[..., None]:
    """Calls this method while its object lives, and does not keep it alive."""
    reference = weakref.WeakMethod(method)

    def call(*_: Any) -> None:
        found = reference()
        if found is not None:
            found()

    return call
