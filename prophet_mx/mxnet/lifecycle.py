"""How scheduling ends, with the first internal error or with its process, what forks inherit, and what no signal may interrupt.

MXNet drops ops that are still queued when it shuts down, and waits for the other workers while it frees a store. So everything held is
released first, what was pushed is waited for, and from then on an alarm without Python names the processes that it waits for.
"""

import _thread
import atexit
import gc
import logging
import os
import signal
import sys
import threading
import time
import weakref
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, Dict, Iterator, List, Optional, Protocol, Sequence, Type, Union

import mxnet as mx

from .. import _core
from ..config import Config
from ..monitoring.watchdog import Watchdog
from ..place import worker_name
from ..runtime import EXIT_STALLED, flush_output, in_own_thread
from .api import PlainStore
from .failures import message
from .owned import OwnedStore

logger = logging.getLogger("prophet_mx")

COLLECTION = 10.0  # seconds for which the exit handler waits, at most, until the garbage collector has ended in another thread


class FailOpen:
    """Ends scheduling at the first failure of one of our parts: everything held is released, later gradients are not held, and one
    error in the log says why. The result of training stays that of plain dist_sync: it does not depend on when gradients are sent.

    Call it from any thread, with the part and what was wrong.

    Attributes
    ----------
    reason : the first failure in words, '' while there is none.
    """

    def __init__(self, driver: "_core.Driver") -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self.reason = ""

    def __call__(self, part: str, error: Union[BaseException, str]) -> None:
        with self._lock:
            if self.reason:
                return
            self.reason = f"{part}: {type(error).__name__}: {error}" if isinstance(error, BaseException) else f"{part}: {error}"
        self._driver.release_all()
        logger.error(
            "scheduling has ended, training continues: an internal error in %s. From now on gradients are sent as they "
            "become ready, with the same result; please report this",
            self.reason,
            exc_info=error if isinstance(error, BaseException) else None,
        )


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Inside, the program's signal handlers are not called, Ctrl-C's included. Afterwards each signal that came is raised once, so that
    what its handler raises comes out of the caller's ``with`` statement, once all is done.

    For what workers do together: it is done as a whole, or the others wait for ever.

    This delays hardly anything: while MXNet waits for other workers, Python calls no handlers either. Handlers run in the main thread, so
    in any other there is nothing to do.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: Dict[int, None] = {}
    handlers: Dict[int, Any] = {}

    def note(number: int, frame: Optional[FrameType]) -> None:
        came[number] = None

    try:
        for number in map(int, signal.valid_signals()):
            handler = signal.getsignal(number)
            if callable(handler):  # of Python; not the system's own, nor "ignore"
                handlers[number] = handler
                signal.signal(number, note)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)


class Path(Protocol):
    """What the end of a store or of its process needs of a path; see :class:`~prophet_mx.mxnet.data_path.ScheduledPath`."""

    config: Config
    rank: int
    driver: "_core.Driver"
    watchdog: Watchdog

    def stop(self) -> None: ...

    def close(self) -> None: ...

    def forked(self) -> bool: ...

    def raise_unseen(self) -> None: ...

    def failed_updates(self, plain: PlainStore) -> str: ...


@contextmanager
def unseen_raised(joined: Sequence[Path]) -> Iterator[None]:
    """A context for the meeting of the workers, inside of which the path that joins is put into the list. If the path has found an error of
    the program's own operations, it is raised at the end. But if another error ends the context, such as Ctrl-C, that one goes on, and the
    path's is only logged."""
    try:
        yield
    except BaseException:
        for path in joined:
            try:
                path.raise_unseen()
            except mx.base.MXNetError as error:
                logger.error("error before the first push: %s", error)
        raise
    for path in joined:
        path.raise_unseen()


_live: "weakref.WeakKeyDictionary[OwnedStore, Path]" = weakref.WeakKeyDictionary()
_handed_over: List["_End"] = []  # of stores whose __del__ could not wait for their end, until it is over
_failed = False  # whether the optimizer on the servers had failed by the end of a store
_collector: Optional[int] = None  # the thread in which the garbage collector runs


def attend(store: OwnedStore, path: Path) -> None:
    """From now on, the end of the process and its forks take care of a store's path, until the store is freed or let go."""
    _live[store] = path


def let_go(store: OwnedStore) -> None:
    """This store no longer has a path."""
    _live.pop(store, None)


def end(path: Path, plain: PlainStore) -> None:
    """End a store without references: stop its path and free its handle, which waits for other workers.

    The thread that drops the last reference waits for that, as with a plain store. But the garbage collector calls ``__del__`` in the
    middle of anything, in any thread: in one that the path's end would join, or in one that holds a lock for which one of the path's
    threads waits, such as a log handler's. Then a new thread does it, and this one waits for nothing and takes no lock.
    """
    ending = _End(path, plain)
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

    def __init__(self, path: Path, plain: PlainStore) -> None:
        self.path: Optional[Path] = path  # until it is over
        self._plain = plain
        self._lock = threading.Lock()

    def carry_out(self) -> None:
        with self._lock:
            if self.path is None:
                return
            # MXNet waits for the engine when it frees a store, so nothing may be held; and for the other workers, so that is watched.
            self.path.stop()
            try:
                if self.path.watchdog.scheduler_gone:
                    self._plain.leave_alone()
                with self.path.watchdog.blocked("the other workers to end (MXNet's barrier)", ending=True):
                    try:
                        mx.nd.waitall()  # what groups have still to send needs the driver's thread, and the store
                    except mx.base.MXNetError as error:  # of the program, which has not seen it; the others wait for what follows
                        logger.error("error at the end of the store: %s", error)
                    _look_for_failed_updates(self.path, self._plain)
                    self.path.driver.join()
                    self._plain.free()
            finally:
                self.path.watchdog.close()
                self.path = None
                if self in _handed_over:
                    _handed_over.remove(self)


def _look_for_failed_updates(path: Path, plain: PlainStore) -> None:
    """All is answered: if the last updates failed, nothing else will say so. Not for a store that is freed after the program's exit
    handlers, among them ours, which has looked."""
    global _failed
    try:
        failed = "" if sys.is_finalizing() else path.failed_updates(plain)
    except Exception as error:  # the store has to be freed all the same, as the others wait for that
        logger.error("at the end it is not known whether the servers have updated all parameters: %s", error)
        return
    if failed:
        _failed = True
        logger.error("%s", message(failed))


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
                PlainStore(store.handle).leave_alone()
        with ExitStack() as waiting:
            for _, path in stores if ended_by is not None else ():  # the watchdog does not count what is passed through
                waiting.enter_context(path.watchdog.blocked("what MXNet has still to do"))
            mx.nd.waitall()
        for store, path in stores if ended_by is None else ():
            _look_for_failed_updates(path, PlainStore(store.handle))
    except mx.base.MXNetError as error:
        logger.error("error at exit: %s", error)
    finally:
        for _, path in stores:
            _set_alarms(path)
            path.close()
            path.driver.join()
        _await_handed_over(None if ended_by is None else code)
        gc.callbacks.remove(_note_collection)  # of our threads none is left, and no new one could be started
        if _failed and ended_by is None:
            _exit_failed()
        for store, _ in stores:
            _free(store)


def _free(store: OwnedStore) -> None:
    """Free a store while MXNet's modules are there. The interpreter may clear some of them before it comes to the store, which it may also
    never do."""
    try:
        store.free_at_exit()
    except mx.base.MXNetError as error:
        logger.error("error at exit: %s", error)


def _exit_failed() -> None:
    """End the process with 1, as after an exception: it has trained with parameters that were not updated. Nobody is waited for: the
    servers serve no purpose any more."""
    logging.shutdown()
    flush_output()
    os._exit(1)


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


def _set_alarms(path: Path) -> None:
    """MXNet waits for the other workers as it ends, when no Python thread may be left to say so."""
    warn, abort = path.config.stall_warn, path.config.stall_abort
    text = (
        f"prophet_mx: {worker_name(path.rank)} has ended and is still waiting for the others after %g s: a worker that has not "
        "ended is slow, stopped or dead"
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
