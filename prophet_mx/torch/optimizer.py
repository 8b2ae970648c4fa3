"""``ScheduledOptimizer``: what a training script sees."""

import logging
import os
import weakref
from itertools import chain
from typing import Any, Callable, ContextManager, Dict, List, NamedTuple, Optional

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as torch_optimizer

from ..config import Config
from ..errors import ConfigError
from ..monitoring.metrics import set_up_logging
from ..monitoring.timeline import wanted
from ..policies import OFF
from ..runtime import in_own_thread, start_thread
from . import agreement, refusals
from .ending import EXIT_PATIENCE, end_at_exit, ended, wait_in_time
from .exchange import Exchange
from .guards import register, unguard, unguard_gradient, unregister
from .learning import Learner
from .modules import Model, broadcast_all, named_parameters
from .monitor import Monitor, Stats
from .rounds import Channel
from .streams import streams_of
from .tracked import Tracked
from .waiting import Waiting

logger = logging.getLogger("prophet_mx")

FIRST_UNIT = 1 << 20  # bytes, until it is known what collectives cost


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
        Those of the traffic to servers (``drain``, ``bandwidth``, ``message_cost``, ``window``, ``lead``) are not allowed.

    Raises
    ------
    ConfigError
        a setting has a wrong value or no effect here, the ranks have different settings, or the model or the optimizer cannot be scheduled.
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
        self.optimizer = optimizer
        self._exchange: Optional[Exchange] = None
        self._monitor: Optional[Monitor] = None
        config = Config.from_env(**settings)
        refusals.check_settings(settings, os.environ)
        named = named_parameters(model) if isinstance(model, nn.Module) else []
        refusals.check(model, optimizer, named, config)
        set_up_logging(config)
        self._config = config
        self._iteration = 0
        ddp = model if isinstance(model, DistributedDataParallel) else None
        if config.policy == OFF and ddp is not None:
            return
        if not dist.is_available() or not dist.is_initialized():
            raise ConfigError("torch.distributed is not initialised; call torch.distributed.init_process_group() first")
        parent = process_group if ddp is None else ddp.process_group
        unused = getattr(ddp, "find_unused_parameters", False) if find_unused_parameters is None else find_unused_parameters
        self._lazy = refusals.steps_lazily(optimizer)
        self._group = agreement.own_group(parent, config)
        tracked = [Tracked(param, name, index) for index, (name, param) in enumerate(named)]
        agreement.check_same(self._group, tracked, config, (unused, ddp is None, broadcast_buffers))
        if ddp is None:
            broadcast_all(model, self._group)
        planner = agreement.Planner(self._group, tracked, config)
        saved = agreement.saved_profile(self._group, tracked, config)
        plan = agreement.first_plan(tracked, config.unit or FIRST_UNIT) if saved is None else planner.resume(saved)
        waiting = Waiting(config, dist.get_rank())
        self._monitor = Monitor(config, [each.name for each in tracked], waiting, dist.get_rank(), self._group.size())
        streams = streams_of(each.param for each in tracked)
        self._exchange = Exchange(tracked, Channel(self._group, waiting, self._monitor.traffic, streams, unused))
        self._exchange.install(plan)
        self._find_groups()
        for each in tracked:
            register(each, self._exchange)
        self._control = agreement.own_group(parent, config)  # for what the caller's thread sends while collectives are under way
        self._learner = Learner(self._exchange, planner, config, self._control, plan)
        self._model = Model(model, self._exchange, self._control, broadcast_buffers)
        optimizer.register_state_dict_pre_hook(_before_state_dict(weakref.ref(self)))
        end_at_exit(self._exchange, self._monitor, _left_by(weakref.ref(self)))
        self._parts = Parts(self._exchange, self._model, self._monitor, [self._group, self._control])
        self._finalizer = weakref.finalize(self, _dropped, self._parts)
        self._finalizer.atexit = False  # the end of the process is another matter

    # -- what an optimizer has ---------------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":
            raise AttributeError(name)  # while this object is made
        return getattr(self.optimizer, name)

    @property
    def param_groups(self) -> List[Dict[str, Any]]:  # type: ignore[override]
        """The user's optimizer's own groups."""
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The user's optimizer's own state, after all updates."""
        self.synchronize()
        return self.optimizer.state

    @property
    def defaults(self) -> Dict[str, Any]:  # type: ignore[override]
        """The user's optimizer's own defaults."""
        return self.optimizer.defaults

    def __repr__(self) -> str:
        return f"ScheduledOptimizer({self.optimizer!r})"

    def __getstate__(self) -> Dict[str, Any]:
        raise ConfigError("a ScheduledOptimizer cannot be copied or pickled; save its state_dict(), or copy the optimizer that it wraps")

    def state_dict(self) -> Dict[str, Any]:
        """The user's optimizer's, after all updates."""
        self.synchronize()
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """As of the user's optimizer, after all updates."""
        self.synchronize()
        self.optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """As of the user's optimizer; ConfigError if a parameter is not one of those whose gradients are reduced."""
        self.synchronize()
        self.optimizer.add_param_group(param_group)
        if self._exchange is not None:
            self._find_groups()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As of the user's optimizer; it waits for nothing if ``set_to_none``."""
        if self._exchange is None:
            self.optimizer.zero_grad(set_to_none)
        else:
            self._follow_groups()
            self._exchange.zero_grad(set_to_none)

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:  # type: ignore[override]
        """Start the update of all parameters that have gradients, with the current hyperparameters, and return.

        Raises
        ------
        CollectiveError
            backward made no gradient for some parameters, or gradients can no longer be reduced.
        """
        if self._exchange is None:
            return self.optimizer.step(closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._follow_groups()
        self.optimizer._opt_called = True  # type: ignore[attr-defined]  # for schedulers that were given the user's optimizer
        if self._lazy:
            self._step_lazily(self._exchange)
        else:
            self._step_at_once(self._exchange)
        self._iteration += 1
        self._learner.iteration_ends()
        if self._monitor is not None:
            self._monitor.iteration_ends(self._iteration)
        return loss

    # -- what it has besides -----------------------------------------------------------------------------------------------

    def no_sync(self) -> ContextManager[None]:
        """A context in which backward only accumulates gradients on this rank; a DistributedDataParallel's ``no_sync()`` does the same."""
        if self._exchange is None:
            raise ConfigError("no_sync() is the DistributedDataParallel's own with policy='off'")
        return self._model.no_sync()

    def synchronize(self) -> None:
        """Return when all updates that ``step()`` has started are done. Reading a parameter waits for its update in any case."""
        if self._exchange is not None:
            self._exchange.synchronize()

    # -- what it shows -----------------------------------------------------------------------------------------------------

    def stats(self) -> Stats:
        """What this rank has reduced, learned and waited for so far; returns at once. The keys are those of
        :class:`~prophet_mx.torch.Stats`; only ``policy`` if DistributedDataParallel does everything itself."""
        if self._monitor is None:
            return {"policy": OFF}
        return self._monitor.stats(self._iteration, self._learner.plan, self._learner.plans)

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
        if exchange is None:
            return
        ended(exchange)
        self._finalizer.detach()
        try:
            exchange.synchronize()
            exchange.release_all()
        finally:
            self._parts.take_down(EXIT_PATIENCE)

    def _leave(self) -> None:
        """In a forked child: as after :meth:`close`, without the threads, the groups and the files, which are the parent's."""
        exchange, self._exchange, self._monitor = self._exchange, None, None
        self._finalizer.detach()
        self._model.close()
        for each in exchange.tracked if exchange is not None else ():
            unguard_gradient(each)
            if type(each.param) is nn.Parameter:
                unregister(each)  # else using it raises

    # -- inside ------------------------------------------------------------------------------------------------------------

    def _find_groups(self) -> None:
        """Which parameter is in which group of the optimizer."""
        assert self._exchange is not None
        refusals.check_groups(self.optimizer)
        tracked = {id(each.param): each for each in self._exchange.tracked}
        for each in tracked.values():
            each.group = None
        for index, group in enumerate(self.optimizer.param_groups):
            for param in group["params"]:
                if id(param) in tracked:
                    tracked[id(param)].group = index
                elif param.requires_grad:
                    raise ConfigError(
                        f"a parameter of shape {tuple(param.shape)} requires a gradient that is not reduced; allowed: parameters that "
                        "required one when the ScheduledOptimizer was created (close() it and create a new one)"
                    )
        self._grouped = self._identities()

    def _follow_groups(self) -> None:
        """See whether the program has changed which parameters are in which group."""
        if self._identities() != self._grouped:
            self.synchronize()  # an update under way uses the groups of its own step()
            self._find_groups()

    def _identities(self) -> List[List[int]]:
        return [[id(param) for param in group["params"]] for group in self.optimizer.param_groups]

    def _step_lazily(self, exchange: Exchange) -> None:
        optimizer: Any = self.optimizer
        for hook in list(chain(torch_optimizer._global_optimizer_pre_hooks.values(), optimizer._optimizer_step_pre_hooks.values())):
            if hook(optimizer, (), {}) is not None:
                raise ConfigError("a step pre-hook that changes the arguments of step() is not allowed")
        exchange.step(optimizer)
        for hook in list(chain(optimizer._optimizer_step_post_hooks.values(), torch_optimizer._global_optimizer_post_hooks.values())):
            hook(optimizer, (), {})

    def _step_at_once(self, exchange: Exchange) -> None:
        """For optimizers that are not known to treat each parameter by itself: all sums first, then the optimizer as it is."""
        if self._iteration == self._config.warmup:
            logger.info("%s updates all parameters at once, when all sums have arrived", type(self.optimizer).__name__)
        exchange.gather()
        self.optimizer.step()


class Parts(NamedTuple):
    """What one optimizer has made, and does not keep alive."""

    exchange: Exchange
    model: Model
    monitor: Monitor
    groups: List[dist.ProcessGroup]

    def take_down(self, patience: float) -> None:
        """End the threads, and leave the model as it was. ``patience``: seconds for what is under way."""
        self.model.close()
        # Destroying a group waits for what is under way in it.
        if self.exchange.close(patience) and self.exchange.waiting.failure is None:
            for group in self.groups:
                agreement.give_up_group(group)
        self.monitor.close()
        for each in self.exchange.tracked:
            unguard(each)
            unregister(each)
            unguard_gradient(each)


def _dropped(parts: Parts) -> None:
    """Nobody has the optimizer any more: as close(), but for errors. In any thread, as the garbage collector runs there."""
    if in_own_thread():  # which cannot wait for itself
        start_thread("end", _end_dropped, parts)
    else:
        _end_dropped(parts)


def _end_dropped(parts: Parts) -> None:
    wait_in_time(parts.exchange)
    ended(parts.exchange)
    if not parts.exchange.under_way():
        parts.exchange.release_all()
    parts.take_down(1.0)


def _before_state_dict(reference: "weakref.ref[ScheduledOptimizer]") -> Callable[..., None]:
    def synchronize(*_: Any) -> None:
        scheduled = reference()
        if scheduled is not None:
            scheduled.synchronize()

    return synchronize


def _left_by(reference: "weakref.ref[ScheduledOptimizer]") -> Callable[[], None]:
    def leave() -> None:
        scheduled = reference()
        if scheduled is not None:
            scheduled._leave()

    return leave
