"""Watches ``mx.kv.create``, by which scripts make their stores: warns a worker that makes no ``dist`` store, refuses a second one, and one
outside of a job.

A worker without a ``dist`` store trains alone. If all workers of a job do, they write over one another's files. MXNet says nothing of it:
the scheduler and the servers wait. It happens where the option of a script for the store was forgotten, such as ``--kv-store dist_sync``.

A second one is made by mistake: a script wraps a store, and then gives the string ``"dist_sync"`` to a Trainer or to ``fit``, which make
another store of it. MXNet would wait for ever, even if the first store was freed.
"""

import atexit
import functools
import logging
import multiprocessing
import os
import shlex
import sys
import threading
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Optional, Set

import mxnet as mx

from ..errors import KVStoreError
from ..place import LISTEN_VARIABLE, port_here
from ..runtime import start_thread
from .arguments import KVStoreMXNetError

logger = logging.getLogger("prophet_mx")

MINUTE = 60.0  # seconds within which a worker makes its store
NEEDED = ("DMLC_ROLE", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_NUM_WORKER", "DMLC_NUM_SERVER")  # by every process of a job
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
    """Begin the minute within which this process, if it is a worker, has to make a ``dist`` store. If it is in no job, a ``dist``
    store is refused from now on. May be called again."""
    global _watch
    if not all(map(os.environ.get, NEEDED)):
        replace_create("_needs_job", _needing_job)
    if _watch is not None or os.environ.get("DMLC_ROLE") != "worker" or multiprocessing.parent_process() is not None:
        return
    try:
        _watch = _Watch(MINUTE)
    except KVStoreError:
        return  # no room for a thread: whoever needs one says so
    atexit.register(_watch.end)
    replace_create("_notes_stores", _noting)


def dist_store_wrapped() -> None:
    """There is a ``dist`` store: from now on ``mx.kv.create`` refuses another. Local stores are made as before. May be called again."""
    if _watch is not None:
        _watch.end()
    replace_create("_refuses_another", _refusing)


def replace_create(mark: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> bool:
    """Put a function around ``mx.kvstore.create``, under all names by which it is called; False if it has this ``mark`` already."""
    create = mx.kvstore.create
    if getattr(create, mark, False):
        return False
    replacement = around(create)
    setattr(replacement, mark, True)
    for module in (mx.kvstore, mx.kvstore.base):
        if getattr(module, "create", None) is create:
            module.create = replacement
    return True


def _noting(create: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(create)
    def create_noted(name: Any = "local") -> Any:
        if _watch is not None:
            if "dist" in str(name).lower():
                _watch.end()
            else:
                _watch.others.add(repr(name))
        with _own_port(name):
            return create(name)

    return create_noted


@contextmanager
def _own_port(name: Any) -> Iterator[None]:
    """A context for the making of a store: it listens at this worker's port, which makes its rank the launcher's number."""
    port = port_here()
    if port is None or "dist" not in str(name).lower() or LISTEN_VARIABLE in os.environ:
        yield
        return
    os.environ[LISTEN_VARIABLE] = str(port)
    try:
        yield
    finally:
        del os.environ[LISTEN_VARIABLE]


def _needing_job(create: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(create)
    def create_in_job(name: str = "local") -> Any:
        missing = [variable for variable in NEEDED if not os.environ.get(variable)]
        if isinstance(name, str) and "dist" in name.lower() and missing:
            raise KVStoreMXNetError(
                f"a {name!r} store needs a job with a scheduler, servers and workers, and this process was started without them "
                f"({', '.join(missing)} not set). Start the job with: prophet-mx launch -n 2 -s 1 -- {_command()}"
            )
        return create(name)

    return create_in_job


def _command() -> str:
    """The words that have started this program, as far as they are known."""
    script = sys.argv[0] if sys.argv else ""
    known = script not in ("", "-", "-c", "-m") and os.path.isfile(script)
    return " ".join(map(shlex.quote, ["python", *sys.argv])) if known else "python train.py"


def _refusing(create: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(create)
    def create_local(name: str = "local") -> Any:
        if isinstance(name, str) and "dist" in name.lower():
            raise KVStoreMXNetError(
                f"a second dist store ({name!r}) in one process is not possible: MXNet would wait for ever in this call. Pass the store "
                "that was wrapped, not a string: kvstore=kv"
            )
        return create(name)

    return create_local
