"""What schedules the gradients of one model. Its optimizers share it: each updates parameters of its own, and all gradients travel by one
plan, each once.

The first ScheduledOptimizer of a model makes it, on all ranks at once. Those that follow join it, and the ranks exchange nothing for that.
It ends when one of them is closed, or when the program has none of them any more.
"""

import weakref
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..config import Config, shown
from ..errors import ConfigError
from ..policies import OFF
from . import agreement, refusals, wrapped
from .compression import strategy_for
from .ending import Parts, dropped, end_at_exit, others_open
from .exchange import Exchange
from .hooks import nothing, weakly
from .modules import Model, broadcast_all
from .monitor import Monitor
from .process_groups import OwnGroups
from .replicated import ddp_of
from .rounds import Channel
from .strategies import backend_for
from .streams import streams_of
from .tracked import Tracked
from .trial import Trial
from .unscheduled import Unscheduled
from .updates import Groups
from .waiting import Waiting

Named = List[Tuple[str, nn.Parameter]]


class Options(NamedTuple):
    """Keywords of ``ScheduledOptimizer``, as they were given."""

    find_unused_parameters: Optional[bool]
    broadcast_buffers: bool
    process_group: Optional[dist.ProcessGroup]


class Schedule:
    """The schedule of one model's gradients.

    Parameters
    ----------
    model : the module, or a DistributedDataParallel around one.
    named : its parameters that are trained.
    config : all settings.
    options : those that are keywords alone.

    Attributes
    ----------
    exchange, monitor : None once it has ended; in a forked child the monitor, too.
    iteration : how many are over.
    alone : the DistributedDataParallel with which the job goes on, as it is faster.
    """

    def __init__(self, model: nn.Module, named: Named, config: Config, options: Options) -> None:
        self.exchange: Optional[Exchange] = None
        self.config, self._options = config, options
        self.iteration = 0
        self.alone: Optional[DistributedDataParallel] = None
        self._first = True  # this step() is the first one of its iteration
        self._groups: weakref.WeakSet[Groups] = weakref.WeakSet()
        self._handles: List[Any] = []
        if not dist.is_available() or not dist.is_initialized():
            raise ConfigError("torch.distributed is not initialised; call torch.distributed.init_process_group() first")
        ddp = ddp_of(model)
        parent, device = options.process_group if ddp is None else ddp.process_group, named[0][1].device
        refusals.check_order(model, backend_for(device, parent), others_open())
        found = options.find_unused_parameters
        unused = ddp is not None and wrapped.unused(ddp) if found is None else found
        groups = OwnGroups(parent, config, device)
        self._group = group = groups.new()
        tracked = [Tracked(param, name, index) for index, (name, param) in enumerate(named)]
        agreement.check_same(group, tracked, config, (unused, ddp is None, options.broadcast_buffers))
        if ddp is None:
            broadcast_all(model, group)
        strategy = strategy_for(config, group)
        planning = agreement.Planning(group, strategy, tracked, config)
        plan = planning.begin(agreement.saved_profile(group, tracked, config))
        waiting = Waiting(config, dist.get_rank())
        self.monitor: Optional[Monitor] = Monitor(config, [each.name for each in tracked], waiting, dist.get_rank(), group.size())
        streams = streams_of(each.param for each in tracked)
        exchange = Exchange(tracked, Channel(strategy, waiting, self.monitor.traffic, streams, unused, groups.new_beside))
        exchange.install(plan)
        for each in tracked:
            each.watch(exchange)
        # For what the caller's thread sends while collectives of gradients are under way. See the order of collectives in reducer.py.
        control = groups.new_beside()
        self.learner = agreement.Learner(exchange, planning, config, control, plan)
        self.unscheduled = Unscheduled(exchange, wrapped.named_parameters(model, trained=False))
        allow_unused = weakly(self._allow_unused) if found is None else nothing
        self.model = Model(model, exchange, control, options.broadcast_buffers, allow_unused, self.unscheduled, self.learner.round_ends)
        tries = config.fallback == "auto" and config.policy != OFF
        self.trial = Trial(exchange, self.model, config, control) if tries else None
        self.parts = Parts(exchange, self.model, self.monitor, groups.made)
        self._finalizer = weakref.finalize(self, dropped, self.parts)
        end_at_exit(exchange, self.monitor, weakly(self._leave), self._finalizer)
        self.exchange = exchange
        _schedules.add(self)

    def check_again(self, given: Mapping[str, Any], config: Config, options: Options) -> None:
        """Raise ConfigError if a further optimizer of the model is given a setting (``given``) that is not the first one's."""
        assert self.exchange is not None
        wrong = [(name, getattr(config, name), getattr(self.config, name)) for name in given]
        if options.find_unused_parameters is not None:
            wrong.append(("find_unused_parameters", options.find_unused_parameters, self.exchange.rounds.unused))
        if not options.broadcast_buffers:
            wrong.append(("broadcast_buffers", False, self._options.broadcast_buffers))
        if options.process_group is not None:
            wrong.append(("process_group", *(dist.get_process_group_ranks(each) for each in (options.process_group, self._group))))
        for name, value, before in wrong:
            if value != before:
                raise ConfigError(
                    f"{name}={shown(value)} for a second optimizer of the model, whose first one has {shown(before)}; allowed: the same, "
                    "or nothing"
                )

    def join(self, optimizer: torch.optim.Optimizer) -> Groups:
        """Another optimizer of the user, which updates its parameters from now on. ConfigError if these are not its alone."""
        assert self.exchange is not None
        groups = Groups(optimizer, self.exchange.tracked, self._groups)
        self._groups.add(groups)
        self.unscheduled.watch(optimizer)
        if refusals.steps_lazily(optimizer):  # one that runs as a whole has no updates under way
            self._handles.append(optimizer.register_state_dict_pre_hook(weakly(self.await_updates)))
        return groups

    def await_updates(self) -> None:
        """Sums that no update waits for may still be under way."""
        if self.exchange is not None:
            self.exchange.synchronize()

    # -- iterations --------------------------------------------------------------------------------------------------------

    def step_begins(self, optimizer: torch.optim.Optimizer, lazy: bool) -> None:
        """``step()`` of one of the optimizers is called. Where there are several, the first call after a forward counts as an iteration."""
        self._first = self.model.begun or len(self._groups) < 2
        self.model.begun = False
        self.unscheduled.step_begins(type(optimizer).__name__, lazy, self._first)

    def step_ends(self) -> None:
        """At the end of :meth:`step_begins`' call."""
        self.iteration += self._first
        exchange = self.parts.exchange
        if not exchange.paused:
            self.learner.round_ends()
        if not self._first:
            return
        if self.monitor is not None:
            self.monitor.iteration_ends(self.iteration)
        if self.trial is not None and not exchange.recording and self.trial.iteration_ends():
            self._go_on_alone()

    def _go_on_alone(self) -> None:
        """DistributedDataParallel is faster. All ranks are here, at the end of ``step()``."""
        self.alone = self.model.ddp
        assert self.alone is not None
        with self.parts.exchange.waiting.blocked("the other ranks, before the schedule ends"):
            dist.barrier(self.alone.process_group)  # nobody destroys a group that another still uses
        self.close()
        self.model.go_on_alone()

    def _allow_unused(self) -> None:
        """From now on some parameters may have no gradient. No gradient of this round is there yet, on any rank."""
        exchange = self.exchange
        if exchange is not None and not exchange.rounds.unused:
            exchange.finish()
            exchange.rounds.unused = True
            exchange.install(self.learner.plan)

    # -- the end -----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Finish all updates, end the threads, and leave model and optimizers as they were. May be called again."""
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            self._finalizer.detach()
            for handle in self._handles:
                handle.remove()
            self.parts.close()

    def _leave(self) -> None:
        """In a forked child."""
        self.exchange = self.monitor = None
        self._finalizer.detach()
        self.parts.leave()


_schedules: "weakref.WeakSet[Schedule]" = weakref.WeakSet()


def schedule_of(named: Sequence[Tuple[str, nn.Parameter]]) -> Optional[Schedule]:
    """The schedule that these parameters have, no more and no fewer; None if there is none."""
    mine = {id(param) for _, param in named}
    for each in list(_schedules):
        if each.exchange is not None and {id(tracked.param) for tracked in each.exchange.tracked} == mine:
            return each
    return None
