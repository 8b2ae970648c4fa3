"""``ScheduledOptimizer``: what a training script sees."""

import os
from statistics import median
from typing import Any, Callable, ContextManager, Dict, List, Optional

import torch
import torch.distributed as dist
from torch import nn

from ..config import Config
from ..errors import ConfigError
from ..monitoring.metrics import PlainIterations, set_up_logging
from ..monitoring.timeline import wanted
from ..policies import OFF
from . import refusals, wrapped
from .compression import HookedDDP, settled
from .exchange import Exchange
from .hooks import after, untraced
from .modules import without_compiler
from .monitor import Stats, nothing
from .replicated import ddp_of
from .schedule import Options, Schedule, schedule_of
from .updates import step_hooks


class ScheduledOptimizer(torch.optim.Optimizer):
    """Runs an optimizer so that gradients travel in the order in which the next forward needs them.

    ``step()`` returns at once. The user's own optimizer updates a parameter when the sum of its gradients has arrived; code that
    uses the parameter earlier waits for the update. All results are those of DistributedDataParallel.

    Parameters
    ----------
    model : a module, or a DistributedDataParallel around one.
    optimizer : an optimizer of the model's parameters; the two share its groups and its state. If several optimizers have parts of the
        parameters, each gets a ScheduledOptimizer with the same model. Settings are those of the first one.
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

    @untraced
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
        self._schedule: Optional[Schedule] = None
        self._plain: Optional[PlainIterations] = None  # log lines of a job that is not scheduled
        config = Config.from_env(**settings)
        refusals.check_settings(settings, os.environ)
        model = without_compiler(model)
        named = wrapped.named_parameters(model) if isinstance(model, nn.Module) else []
        ddp = ddp_of(model)
        config = settled(ddp, config)
        schedule = schedule_of(named)
        refusals.check(model, ddp, optimizer, named, config, schedule is not None)
        set_up_logging(config)
        options = Options(find_unused_parameters, broadcast_buffers, process_group)
        if schedule is not None:
            schedule.check_again(settings, config, options)
        elif config.policy == OFF and ddp is not None:
            HookedDDP(ddp, config)
            self._plain = PlainIterations(config.log_every) if config.log_every else None
            self._made = True
            return
        else:
            schedule = Schedule(model, named, config, options)
        self._lazy = refusals.steps_lazily(optimizer)
        self._groups = schedule.join(optimizer)
        self._schedule = schedule
        self._made = True

    @property
    def _exchange(self) -> Optional[Exchange]:
        return None if self._schedule is None else self._schedule.exchange

    # -- what an optimizer has ---------------------------------------------------------------------------------------------

    @untraced
    def __getattr__(self, name: str) -> Any:
        if name in ("_inner", "_made", "_schedule"):
            raise AttributeError(name)  # while this object is made
        found = getattr(self._inner, name)
        return after(self._await_updates, found) if getattr(found, "__self__", None) is self._inner else found

    @untraced
    def __setattr__(self, name: str, value: Any) -> None:
        """What the user's optimizer has is set there, as its ``step()`` reads it."""
        ours = name in vars(self) or name in vars(ScheduledOptimizer) or name in _OF_STEP or not getattr(self, "_made", False)
        if name in _SHARED or not ours and hasattr(self._inner, name):
            setattr(self._inner, name, value)
        else:
            super().__setattr__(name, value)

    @property
    @untraced
    def optimizer(self) -> torch.optim.Optimizer:
        """The user's own optimizer, after all updates."""
        self._await_updates()
        return self._inner

    @property
    def param_groups(self) -> List[Dict[str, Any]]:  # type: ignore[override]
        """The user's optimizer's own groups."""
        return self._inner.param_groups

    @property
    @untraced
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

    @untraced
    def state_dict(self) -> Dict[str, Any]:
        """The user's optimizer's, after all updates."""
        self._await_updates()
        return self._inner.state_dict()

    @untraced
    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """As of the user's optimizer, after all updates."""
        self._await_updates()
        self._inner.load_state_dict(state_dict)

    @untraced
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
            self._zero_grad(self._exchange, set_to_none)

    @untraced
    def _zero_grad(self, exchange: Exchange, set_to_none: bool) -> None:
        self._follow_groups()
        if exchange.paused:
            self._inner.zero_grad(set_to_none)
        else:
            exchange.zero_grad(self._groups.mine, set_to_none)

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:  # type: ignore[override]
        """Start the update of all parameters that have gradients, with the current hyperparameters, and return.

        Raises
        ------
        CollectiveError
            backward made no gradient for some parameters, or made them for others that took their place, or gradients can no longer be
            reduced.
        """
        schedule, exchange = self._schedule, self._exchange
        if schedule is None or exchange is None:
            if self._plain is not None:
                self._plain.pushed(None)
            return self._inner.step(closure)
        return self._step(schedule, exchange, closure)

    @untraced
    def _step(self, schedule: Schedule, exchange: Exchange, closure: Optional[Callable[[], Any]]) -> Any:
        self._inner._opt_called = True  # type: ignore[attr-defined]  # for schedulers that were given the user's optimizer
        with schedule.unscheduled.within_step():
            lazily = self._lazy and not exchange.paused
            loss = self._step_lazily(schedule, exchange, closure) if lazily else self._step_whole(schedule, exchange, closure)
        schedule.step_ends()
        return loss

    def _step_lazily(self, schedule: Schedule, exchange: Exchange, closure: Optional[Callable[[], Any]]) -> Any:
        """Updates happen as sums arrive. The hooks of ``step()`` get this object, whose state is the one after all updates."""
        loss = None
        with step_hooks(self._inner, self):
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            self._follow_groups()
            schedule.step_begins(self._inner, self._lazy)
            if not exchange.step(self._inner, self._groups.mine):
                schedule.model.refuse_replaced()
        return loss

    def _step_whole(self, schedule: Schedule, exchange: Exchange, closure: Optional[Callable[[], Any]]) -> Any:
        """The optimizer runs now, as DistributedDataParallel reduces, or it is not known to treat each parameter by itself."""
        self._follow_groups()
        schedule.step_begins(self._inner, self._lazy)
        if closure is not None:
            return self._inner.step(lambda: self._gathered(schedule, exchange, closure()))
        self._gathered(schedule, exchange)
        return self._inner.step()

    def _gathered(self, schedule: Schedule, exchange: Exchange, loss: Any = None) -> Any:
        """The loss, once all sums are in ``grad``."""
        if not exchange.paused and not exchange.gather(self._groups.mine):
            schedule.model.refuse_replaced()
        return loss

    # -- what it has besides -----------------------------------------------------------------------------------------------

    @untraced
    def no_sync(self) -> ContextManager[None]:
        """A context in which backward only accumulates gradients on this rank; a DistributedDataParallel's ``no_sync()`` does the same."""
        schedule = self._schedule
        if schedule is None:
            raise ConfigError("no_sync() is the DistributedDataParallel's own with policy='off'")
        if schedule.exchange is None:
            if schedule.alone is not None:
                return schedule.model.no_sync_alone()
            raise ConfigError("no_sync() of a ScheduledOptimizer that is closed; allowed: the DistributedDataParallel's own, or a new one")
        return schedule.model.no_sync()

    @untraced
    def synchronize(self) -> None:
        """Return when all updates that ``step()`` has started are done, and no sum is under way: the program may start collectives of its
        own, whatever the backend. Reading a parameter waits for its update in any case."""
        self._await_updates()
        if self._exchange is not None:
            self._exchange.settle()

    # -- what it shows -----------------------------------------------------------------------------------------------------

    @untraced
    def stats(self) -> Stats:
        """What this rank has reduced, learned and waited for so far; returns at once. The keys are those of
        :class:`~prophet_mx.torch.Stats`."""
        schedule = self._schedule
        if schedule is None or schedule.monitor is None:
            return nothing()
        learner, trial = schedule.learner, schedule.trial
        stats = schedule.monitor.stats(schedule.iteration, learner.plan, learner.plans, schedule.unscheduled.reasons)
        if trial is not None and trial.times is not None:
            stats["scheduled_seconds"], stats["ddp_seconds"] = (median(times) for times in trial.times)
        if schedule.alone is not None:
            stats["policy"] = OFF
        return stats

    @untraced
    def counters(self) -> Dict[str, Any]:
        """The counters of which :func:`prophet_mx.metrics.between` makes figures; empty where DistributedDataParallel does everything."""
        return {} if self._schedule is None or self._schedule.monitor is None else self._schedule.monitor.snapshot()

    @untraced
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
        schedule = self._schedule
        config = wanted(path, limit, Config() if schedule is None else schedule.config)
        if schedule is None or schedule.exchange is None or schedule.monitor is None:
            raise ConfigError("a timeline shows scheduled traffic, and nothing is scheduled here; allowed: policy='prophet'")
        return schedule.monitor.start_timeline(config)

    @untraced
    def timeline_stop(self) -> Optional[str]:
        """End the trace. The path of the file, None if none was being written."""
        return None if self._schedule is None or self._schedule.monitor is None else self._schedule.monitor.stop_timeline()

    @untraced
    def close(self) -> None:
        """Finish all updates, end the threads, and leave model and optimizer as they were, and the model's other optimizers as well. May be
        called again."""
        if self._schedule is not None:
            self._schedule.close()

    # -- inside ------------------------------------------------------------------------------------------------------------

    def _await_updates(self) -> None:
        """Sums that no update waits for may still be under way."""
        if self._schedule is not None:
            self._schedule.await_updates()

    def _follow_groups(self) -> None:
        """See whether the program has changed which parameters are in which group."""
        if self._groups.changed():
            self._await_updates()
            self._groups.find()


# Set on the user's optimizer in any case; and never, as PyTorch's schedulers set them on the one that they were given.
_SHARED = frozenset(["param_groups", "state", "defaults"])
_OF_STEP = frozenset(["step", "_opt_called", "_step_count"])
