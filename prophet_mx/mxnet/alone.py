"""A worker without a ``dist`` store trains alone, as may all workers of its job, over one another's files. MXNet says nothing of it: the
scheduler and the servers wait. Scripts do this whose option for the store was forgotten, such as ``--kv-store dist_sync``."""

import atexit
import functools
import logging
import multiprocessing
import os
import threading
from typing import Any, Callable, Optional, Set

from ..errors import KVStoreError
from ..runtime import start_thread
from .api import replace_create

logger = logging.getLogger("prophet_mx")

MINUTE = 60.0  # seconds within which a worker makes its store
_ADVICE = "make it with mx.kv.create('dist_sync'), or give the script its option for that, such as --kv-store dist_sync"


class _Watch:
    """Logs an error once, unless a store was made in time. Its thread ends with the first store, or with the process."""

    def __init__(self, seconds: float) -> None:
        self.others: Set[str] = set()  # types of the stores that are not of a job
        self._seconds, self._over = seconds, threading.Event()
        self._thread = start_thread("alone", self._wait)

    def _wait(self) -> None:
        if self._over.wait(self._seconds):
            return
        only = f" but {', '.join(sorted(self.others))}" if self.others else ""
        logger.error(
            "this process is a worker of a job (DMLC_ROLE=worker), and has made no dist store%s in its first %g s: it trains alone, as the "
            "other workers may, and each writes the same files; %s",
            only,
            self._seconds,
            _ADVICE,
        )

    def end(self) -> None:
        """A store was made, or the process ends. May be called again."""
        self._over.set()
        self._thread.join()


_watch: Optional[_Watch] = None


def expect_store() -> None:
    """From now on a minute runs in which this process, if it is a worker, has to make a ``dist`` store. May be called again."""
    global _watch
    if _watch is not None or os.environ.get("DMLC_ROLE") != "worker" or multiprocessing.parent_process() is not None:
        return
    try:
        _watch = _Watch(MINUTE)
    except KVStoreError:
        return  # no room for a thread: whoever needs one says so
    atexit.register(_watch.end)
    replace_create("_notes_stores", _noting)


def store_made() -> None:
    """There is a ``dist`` store."""
    if _watch is not None:
        _watch.end()


def _noting(create: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(create)
    def create_noted(name: Any = "local") -> Any:
        if _watch is not None:
            if "dist" in str(name).lower():
                _watch.end()
            else:
                _watch.others.add(repr(name))
        return create(name)

    return create_noted
