"""How a process with scheduled stores ends, whichever way it does, and what its forks inherit.

MXNet drops ops that are still queued when it shuts down, and waits for the other workers while it frees a store. So everything held is
released first, what was pushed is waited for, and from then on an alarm without Python names the processes that it waits for.
"""

import _thread
import atexit
import gc
import logging
import os
import sys
import threading
import time
import weakref
from typing import Any, Dict, List, Optional, Type

import mxnet as mx
from mxnet.base import _LIB, check_call

from .. import _core
from ..runtime import EXIT_STALLED, in_own_thread
from .data_path import ScheduledPath

logger = logging.getLogger("prophet_mx")

COLLECTION = 10.0  # seconds for which the exit handler waits, at most, until the garbage collector has ended in another thread

_live: "weakref.WeakKeyDictionary[mx.kvstore.KVStore, ScheduledPath]" = weakref.WeakKeyDictionary()
_handed_over: List["_End"] = []  # ends that are not over, of stores whose __del__ could not wait for them
_collector: Optional[int] = None  # the thread in which the garbage collector runs


def attend(store: mx.kvstore.KVStore, path: ScheduledPath) -> None:
    """From now on, while the store lives and is not let go, the end of the process and its forks take care of its path."""
    _live[store] = path


def let_go(store: mx.kvstore.KVStore) -> None:
    """This store no longer has a path."""
    _live.pop(store, None)


def leave_alone(handle: mx.base.KVStoreHandle) -> None:
    """When this store is freed, do not wait for the other workers: they may never come, or the job's scheduler is gone."""
    check_call(_LIB.MXKVStoreSetBarrierBeforeExit(handle, 0))


def end(path: ScheduledPath, handle: mx.base.KVStoreHandle) -> None:
    """The end of a store without references: its path is stopped and its handle freed, which waits for other workers.

    The thread that drops the last reference waits for that, as with a plain store. But the garbage collector calls ``__del__`` in the
    middle of anything, in any thread: in one that the path's end would join, or in one that holds a lock, as of a log handler, for which
    one of the path's threads waits. Then a new thread carries the end out, and nothing is waited for here, nor any lock taken.
    """
    ending = _End(path, handle)
    if _collector != threading.get_ident() and not in_own_thread():
        ending.carry_out()
        return
    _handed_over.append(ending)
    try:
        _thread.start_new_thread(ending.carry_out, ())  # Thread.start() takes locks, and waits for the thread
    except RuntimeError:
        pass  # no room for a thread: at exit, then


class _End:
    """Carried out once, by the thread that comes first; the others wait until it is done.

    Contract: uses none of the path's arrays. The collector may have freed them, as it finalises all that is garbage together.
    """

    def __init__(self, path: ScheduledPath, handle: mx.base.KVStoreHandle) -> None:
        self.path: Optional[ScheduledPath] = path  # until it is over
        self._handle = handle
        self._lock = threading.Lock()

    def carry_out(self) -> None:
        with self._lock:
            if self.path is None:
                return
            # MXNet waits for the engine when it frees a store, so nothing may be held; and for the other workers, so that is watched.
            self.path.stop()
            try:
                if self.path.watchdog.scheduler_gone:
                    leave_alone(self._handle)
                with self.path.watchdog.blocked("the other workers to end (MXNet's barrier)", ending=True):
                    check_call(_LIB.MXKVStoreFree(self._handle))
            finally:
                self.path.watchdog.close()
                self.path = None
                if self in _handed_over:
                    _handed_over.remove(self)


def _note_collection(phase: str, info: Dict[str, Any]) -> None:
    """The garbage collector begins or ends."""
    global _collector
    _collector = threading.get_ident() if phase == "start" else None


def _at_exit() -> None:
    """Registered after MXNet's own exit handler, so it runs before it."""
    stores = [(store, path) for store, path in _live.items() if not path.forked()]
    ended_by = _ended_by()
    code = 130 if ended_by is not None and issubclass(ended_by, KeyboardInterrupt) else 1
    try:
        for store, path in stores:
            path.stop()
            if ended_by is not None:
                path.watchdog.hurry(code)
            if ended_by is not None or path.watchdog.scheduler_gone:
                leave_alone(store.handle)
        mx.nd.waitall()
    except mx.base.MXNetError as error:
        logger.error("error at exit: %s", error)
    finally:
        for _, path in stores:
            _set_alarms(path)
            path.close()
        _await_handed_over(None if ended_by is None else code)
        gc.callbacks.remove(_note_collection)  # of our threads none is left, and no new one could be started


def _ended_by() -> Optional[Type[BaseException]]:
    """The exception that ends the program, where one does.

    Python notes it in ``sys`` as it prints it. Interpreters inside a program (code, pdb, IPython) and test runners do so as well with
    exceptions after which the program continues. Their tracebacks do not begin where the program does.
    """
    trace = getattr(sys, "last_traceback", None)
    if trace is None:
        return None
    frame = trace.tb_frame
    script = frame.f_code.co_name == "<module>" and frame.f_globals is vars(sys.modules["__main__"])
    if script:  # "<string>" is python -c, "<stdin>" a script that Python reads, or each line of an interactive session
        file = frame.f_code.co_filename
        script = not file.startswith("<") or file == "<string>" or file == "<stdin>" and not hasattr(sys, "ps1")
    started = frame.f_globals.get("__name__") == "runpy"  # python -m
    return sys.last_type if script or started else None


def _await_handed_over(code: Optional[int]) -> None:
    """Wait for the end of every store that was handed over. ``code`` is not None: an exception ends the program."""
    until = time.monotonic() + COLLECTION
    while _collector not in (None, threading.get_ident()) and time.monotonic() < until:
        time.sleep(0.001)  # a store that it is about to free is in none of our lists
    for ending in list(_handed_over):  # noqa: PERF101  (a copy: other threads change it)
        path = ending.path
        if path is not None and code is not None:
            path.watchdog.hurry(code)
        ending.carry_out()


def _set_alarms(path: ScheduledPath) -> None:
    """No Python thread may live until MXNet has ended: it waits for the other workers then."""
    warn, abort = path.config.stall_warn, path.config.stall_abort
    text = (
        f"prophet_mx: worker {path.rank} has ended and is still waiting for the others after %g s: a worker that has not ended is slow, "
        "stopped or dead"
    )
    try:
        if warn:
            _core.alarm(warn, text % warn)
        if abort:
            _core.alarm(abort, text % abort + f"; exit code {EXIT_STALLED}", EXIT_STALLED)
    except OSError as error:
        logger.error("if the process waits for other workers at its end, no message will say so: %s", error)


def _in_child() -> None:
    """After a fork, as of a data loader: the child has none of our threads."""
    paths = list(_live.values()) + [ending.path for ending in _handed_over]
    _handed_over.clear()
    for path in paths:
        if path is not None:
            path.driver.forget_thread()
            path.watchdog.forget_thread()


gc.callbacks.append(_note_collection)
atexit.register(_at_exit)
os.register_at_fork(after_in_child=_in_child)
