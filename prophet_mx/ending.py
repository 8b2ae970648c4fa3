"""How a process with scheduled stores ends, whichever way it does, and what its forks inherit.

MXNet drops ops that are still queued when it shuts down, and waits for the other workers while it frees a store. So everything held is
released first, what was pushed is waited for, and from then on an alarm without Python tells for whom the process waits.
"""
import atexit
import logging
import os
import sys
import weakref
from typing import TYPE_CHECKING

import mxnet as mx
from mxnet.base import _LIB, check_call

from . import _core
from .job import EXIT_STALLED

if TYPE_CHECKING:
    from .kvstore import ScheduledKVStore

logger = logging.getLogger("prophet_mx")

_live: "weakref.WeakSet[ScheduledKVStore]" = weakref.WeakSet()


def attend(store: "ScheduledKVStore") -> None:
    """From now on, until it is closed, the end of the process and its forks take care of this store."""
    _live.add(store)


def _at_exit() -> None:
    """Registered after MXNet's own exit handler, so it runs before it."""
    stores = [store for store in _live if store._path is not None and not store._path.forked()]
    ended_by = getattr(sys, "last_type", None)              # the exception that ends the program, where one does
    try:
        for store in stores:
            store._path.stop()
            if ended_by is not None:
                store._path.watchdog.hurry(130 if issubclass(ended_by, KeyboardInterrupt) else 1)
            if ended_by is not None or store._path.watchdog.scheduler_gone:
                check_call(_LIB.MXKVStoreSetBarrierBeforeExit(store.handle, 0))     # do not wait for the other workers
        mx.nd.waitall()
    except mx.base.MXNetError as error:
        logger.error("while finishing at exit: %s", error)
    finally:
        for store in stores:
            _set_alarms(store)
            store.close()


def _set_alarms(store: "ScheduledKVStore") -> None:
    """No Python thread may live until MXNet has ended: it waits for the other workers then."""
    warn, abort = store._config.stall_warn, store._config.stall_abort
    text = (f"prophet_mx: worker {store.rank} has ended and still waits for the others after %g s: one that has not ended is slow, "
            "stopped or dead")
    try:
        if warn:
            _core.alarm(warn, text % warn)
        if abort:
            _core.alarm(abort, text % abort + f"; exit code {EXIT_STALLED}", EXIT_STALLED)
    except OSError as error:
        logger.error("nothing will be said if the end of the process waits for other workers: %s", error)


def _in_child() -> None:
    """After a fork, as of a data loader: the child has none of our threads."""
    for store in list(_live):
        if store._path is not None:
            store._path.driver.forget_thread()
            store._path.watchdog.forget_thread()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_in_child)
