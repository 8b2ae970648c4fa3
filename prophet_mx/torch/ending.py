"""The end of a process, in which other ranks may still wait for collectives that this one has started, and its forks.

A forked child has none of our threads. So a fork waits for updates under way, and the model of the child is a plain one, as after
``close()``: in it nothing waits for anything. What is not there when backward is under way, or after a failure, is an error in the child.
"""

import atexit
import logging
import os
import time
import weakref
from typing import Callable, List, Tuple

from .exchange import Exchange
from .monitor import Monitor

logger = logging.getLogger("prophet_mx")

EXIT_PATIENCE = 10.0  # seconds that the end of a process waits for what other ranks have not answered

# With the process that made it, and what leaves it behind in a forked child.
_open: "weakref.WeakKeyDictionary[Exchange, Tuple[Monitor, int, Callable[[], None]]]" = weakref.WeakKeyDictionary()
_forking: List[Exchange] = []  # their locks are held


def end_at_exit(exchange: Exchange, monitor: Monitor, leave: Callable[[], None]) -> None:
    """End this with the process, unless :func:`ended` says that it has ended before. ``leave`` is called in a forked child."""
    _open[exchange] = monitor, os.getpid(), leave


def ended(exchange: Exchange) -> None:
    """It is closed."""
    _open.pop(exchange, None)


def wait_in_time(exchange: Exchange) -> None:
    """Return when nothing is under way, or when that has taken too long."""
    until = time.monotonic() + (1.0 if exchange.in_backward() else EXIT_PATIENCE)
    while exchange.under_way() and exchange.waiting.failure is None and time.monotonic() < until:
        time.sleep(0.001)


@atexit.register
def _at_exit() -> None:
    for exchange, (monitor, pid, _) in list(_open.items()):
        if pid != os.getpid():
            continue
        wait_in_time(exchange)
        if not exchange.close(1.0):
            logger.warning("the process ends while other ranks have not answered")
        monitor.close()


def _before_fork() -> None:
    for exchange in list(_open):
        exchange.hold()
        _forking.append(exchange)


def _after_fork_here() -> None:
    while _forking:
        _forking.pop().let_go()


def _after_fork_in_child() -> None:
    _forking.clear()
    for exchange, (_, _, leave) in list(_open.items()):
        exchange.leave()
        leave()
    _open.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_here, after_in_child=_after_fork_in_child)
