"""How an optimizer ends: by close(), when nobody has it any more, with its process, and in forks.

At the end of a process other ranks may still wait for collectives that this one has started.

A forked child has none of our threads. So a fork waits for updates under way, and the model of the child is a plain one, as after
``close()``: nothing in it waits. If backward is under way, or gradients can no longer be reduced, using a missing one is an error there.
"""

import atexit
import logging
import os
import time
import weakref
from typing import Callable, List, NamedTuple

import torch.distributed as dist

from ..runtime import in_own_thread, start_thread
from .exchange import Exchange
from .hooks import untraced
from .modules import Model
from .monitor import Monitor
from .passes import in_no_pass
from .process_groups import give_up

logger = logging.getLogger("prophet_mx")

EXIT_PATIENCE = 10.0  # seconds that the end of a process waits for what other ranks have not answered


class Parts(NamedTuple):
    """What one optimizer has made, and does not keep alive."""

    exchange: Exchange
    model: Model
    monitor: Monitor
    groups: List[dist.ProcessGroup]

    def close(self) -> None:
        """Finish all updates, then :meth:`take_down`."""
        ended(self.exchange)
        try:
            self.exchange.synchronize()
            self.exchange.release_all()
            self._leave_gradients()
        finally:
            self.take_down(EXIT_PATIENCE)

    def _leave_gradients(self) -> None:
        """Gradients of a backward that no ``step()`` has followed are in ``grad``, unless other ranks do not come."""
        if self.exchange.incomplete() or self.exchange.waiting.failure is not None:
            return
        self.exchange.end_round()
        wait_in_time(self.exchange)
        for each in self.exchange.tracked:
            if each.hidden and not each.unlanded:
                self.exchange.expose(each)

    def take_down(self, patience: float) -> None:
        """End the threads, and leave the model as it was. ``patience``: seconds for what is under way."""
        self.model.close()
        ended = self.exchange.close(patience)
        # Destroying a group waits for what is under way in it.
        if ended and self.exchange.waiting.failure is None:
            for group in self.groups:
                give_up(group)
        self.monitor.close()
        for each in self.exchange.tracked:
            each.leave()
            each.unwatch()
        if ended:
            self.exchange.free()

    def leave(self) -> None:
        """In a forked child: as after :meth:`close`, without the threads, the groups and the files, which are the parent's."""
        self.model.close()
        for each in self.exchange.tracked:
            each.unwatch()


@untraced
def dropped(parts: Parts) -> None:
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


class _Open(NamedTuple):
    """What is not closed: its monitor, the process that made it, what to call in a forked child, and what calls :func:`dropped`."""

    monitor: Monitor
    pid: int
    leave: Callable[[], None]
    finalizer: weakref.finalize


_open: "weakref.WeakKeyDictionary[Exchange, _Open]" = weakref.WeakKeyDictionary()
_forking: List[Exchange] = []  # their locks are held


def end_at_exit(exchange: Exchange, monitor: Monitor, leave: Callable[[], None], finalizer: weakref.finalize) -> None:
    """End this with the process, unless :func:`ended` says that it has ended before. ``leave`` is called in a forked child. The
    ``finalizer`` has nothing to do then: the interpreter drops the optimizer when modules have no names left."""
    atexit.unregister(_at_exit)  # with Python 3.13 a child of multiprocessing has none of its parent's
    atexit.register(_at_exit)
    finalizer.atexit = False
    _open[exchange] = _Open(monitor, os.getpid(), leave, finalizer)


def others_open() -> bool:
    """Whether this process schedules anything else."""
    return any(each.pid == os.getpid() for each in list(_open.values()))


def ended(exchange: Exchange) -> None:
    """It is closed."""
    _open.pop(exchange, None)


def wait_in_time(exchange: Exchange) -> None:
    """Return when nothing is under way, or when that has taken too long."""
    until = time.monotonic() + (1.0 if exchange.in_backward() else EXIT_PATIENCE)
    while exchange.under_way() and exchange.waiting.failure is None and time.monotonic() < until:
        time.sleep(0.001)


def _at_exit() -> None:
    for exchange, each in list(_open.items()):
        if each.pid != os.getpid():
            continue
        wait_in_time(exchange)
        if not exchange.close(1.0):
            logger.warning("the process ends while other ranks have not answered")
        each.monitor.close()
        each.finalizer.detach()


@untraced
def _before_fork() -> None:
    for exchange in list(_open):
        _hold(exchange)
        _forking.append(exchange)


def _hold(exchange: Exchange) -> None:
    """Wait for updates, and for sums unless backward is under way, and hold the lock."""
    with exchange.waiting.noted(lambda: "all gradients, before a fork"):
        exchange.waiting.condition.acquire()
        exchange.say_ripe(exchange.tracked)
        while exchange.waiting.failure is None and _not_done(exchange):
            exchange.waiting.condition.wait()


def _not_done(exchange: Exchange) -> bool:
    between = not exchange.in_backward() and in_no_pass()
    return any(tracked.update is not None or between and tracked.unlanded for tracked in exchange.tracked)


@untraced
def _after_fork_here() -> None:
    while _forking:
        _forking.pop().waiting.condition.release()


@untraced
def _after_fork_in_child() -> None:
    _forking.clear()
    for exchange, each in list(_open.items()):
        exchange.leave()
        each.leave()
    _open.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_here, after_in_child=_after_fork_in_child)
