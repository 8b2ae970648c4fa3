"""The end of a process, in which other ranks may still wait for collectives that this one has started."""

import atexit
import logging
import os
import time
import weakref
from typing import Tuple

from .exchange import Exchange
from .monitor import Monitor

logger = logging.getLogger("prophet_mx")

EXIT_PATIENCE = 10.0  # seconds that the end of a process waits for what other ranks have not answered

_open: "weakref.WeakKeyDictionary[Exchange, Tuple[Monitor, int]]" = weakref.WeakKeyDictionary()  # with the process that made it


def end_at_exit(exchange: Exchange, monitor: Monitor) -> None:
    """End this with the process, unless :func:`ended` says that it has ended before."""
    _open[exchange] = monitor, os.getpid()


def ended(exchange: Exchange) -> None:
    """It is closed."""
    _open.pop(exchange, None)


@atexit.register
def _at_exit() -> None:
    for exchange, (monitor, pid) in list(_open.items()):
        if pid != os.getpid():
            continue
        until = time.monotonic() + (1.0 if exchange.in_backward() else EXIT_PATIENCE)
        while exchange.under_way() and exchange.waiting.failure is None and time.monotonic() < until:
            time.sleep(0.001)
        if not exchange.close(1.0):
            logger.warning("the process ends while other ranks have not answered")
        monitor.close()
