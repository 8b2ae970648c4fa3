"""Reports when training stands still, and what it is waiting for. MXNet itself waits forever without a message.

Contract: one Python thread, which looks once a second. While answers arrive, that of a store does nothing but compare two counters and ask
the kernel for the state of each connection. It holds no reference to the store, so that the store can be freed while it runs.
"""

import faulthandler
import logging
import os
import threading
import time
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

from .. import _core
from ..config import Config
from ..network.connections import Connection, Health
from ..place import worker_name
from ..runtime import EXIT_STALLED, flush_output, start_thread

logger = logging.getLogger("prophet_mx")

TICK = 1.0  # seconds between two looks
EXIT_PATIENCE = 10.0  # seconds without an answer for which a process that ends with an exception waits for others
LISTED = 8  # parameters in a message
DRAINED = (
    "the server has the bytes: another worker has not sent its part (it is slow, stopped or dead), or the server itself is "
    "stopped or cut off"
)

WaitingUnit = Tuple[int, int, str, float, Optional[bool]]
"""As :meth:`prophet_mx._core.Driver.waiting` gives it: unit, server, state, seconds, drained."""


class Watch:
    """A thread that looks once a second, from :meth:`start` to :meth:`close`."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread: Optional[threading.Thread] = None

    def start(self) -> None:
        """Start the thread. KVStoreError if it cannot be started."""
        self._thread = start_thread("watchdog", self._run)

    def forget_thread(self) -> None:
        """In a forked child: the thread exists in the parent only."""
        self._thread = None

    def close(self) -> None:
        """End the thread; may be called again."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._thread = None

    def _run(self) -> None:
        last = time.monotonic()
        try:
            while not self._stop.wait(TICK):
                now = time.monotonic()
                # A process that was stopped itself, or starved, has not waited for others all the time.
                self._look(min(now - last, 2 * TICK))
                last = now
        except Exception:
            logger.exception("the watchdog has ended after an internal error; training continues, but stalls are no longer reported")

    def _look(self, seconds: float) -> None:
        """In the thread, so many seconds after the last look."""
        raise NotImplementedError


class Wait:
    """One thread of the program that waits: since when, for what, and when the log last said so (``time.monotonic``)."""

    def __init__(self, what: Callable[[], str]) -> None:
        self.began = self.told = time.monotonic()
        self.what = what


class WaitWatch(Watch):
    """Watches threads of a program that say for what they wait (:meth:`noted`). It only writes to the log.

    Parameters
    ----------
    warn : an error in the log for each so many seconds of a wait; None: no thread looks.
    rank : this one, for the messages.
    why : of such a wait, in words.
    """

    def __init__(self, warn: Optional[float], rank: int, why: str) -> None:
        super().__init__()
        self._warn, self._rank, self._why = warn, rank, why
        self._waits: Dict[int, Wait] = {}  # by the thread that waits

    def start(self) -> None:
        """Start the thread if the settings ask for one. KVStoreError if it cannot be started."""
        if self._warn is not None:
            super().start()

    @contextmanager
    def noted(self, what: Callable[[], str]) -> Iterator[Wait]:
        """While the caller's thread waits for ``what()``. A signal's handler may wait within a wait."""
        thread = threading.get_ident()
        outer = self._waits.get(thread)
        wait = self._waits[thread] = Wait(what)
        try:
            yield wait
        finally:
            if outer is None:
                del self._waits[thread]
            else:
                self._waits[thread] = outer
            if wait.told > wait.began:
                logger.warning("rank %d continues after a wait of %.0f s", self._rank, time.monotonic() - wait.began)

    def _look(self, seconds: float) -> None:
        now = time.monotonic()
        for wait in list(self._waits.values()):
            if self._warn is not None and now - wait.told >= self._warn:
                wait.told = now
                logger.error("rank %d has waited %.0f s for %s: %s", self._rank, now - wait.began, wait.what(), self._why)


class Watchdog(Watch):
    """Watches one store's driver. :meth:`close` ends and joins its thread.

    Parameters
    ----------
    driver : whose requests are watched.
    config : ``stall_warn`` and ``stall_abort``.
    rank : this worker's, for the messages.
    name_of : the parameter of a unit.
    fail : called with a part's name and what is wrong with it, when the compiled scheduler found that it contradicts itself.

    Raises KVStoreError if its thread cannot be started.
    """

    def __init__(
        self, driver: "_core.Driver", config: Config, rank: int, name_of: Callable[[int], str], fail: Callable[[str, str], None]
    ) -> None:
        super().__init__()
        self._driver = driver
        self._warn, self._abort, self._code = config.stall_warn, config.stall_abort, EXIT_STALLED
        self._name = worker_name(rank)
        self._name_of = name_of
        self._fail = fail
        self._connections: List[Connection] = []
        self._broken: Set[Connection] = set()  # reported
        self._blocked: Optional[str] = None  # what the caller's thread waits for, besides answers
        self._ending = False
        self._told: Optional[Callable[[], str]] = None  # for listen()
        self._phase = 0  # changes when what may be waited for changes
        self._seen = (0, 0)  # phase and number of answers in the last look
        self._quiet = 0.0  # seconds without an answer, while something waited
        self._warned = False
        self.start()

    def listen(self, told: Callable[[], str]) -> None:
        """Look at what the servers tell: as soon as it is not '', they have failed, and the process does as in :meth:`hurry`."""
        self._told = told

    def watch(self, connections: List[Connection]) -> None:
        """Report these connections when they break."""
        self._connections = connections

    @property
    def scheduler_gone(self) -> bool:
        """Whether the connection to the job's scheduler broke: there are no more barriers."""
        return any(connection.server == -1 for connection in self._broken)

    @property
    def server_gone(self) -> bool:
        """Whether the connection to a server is broken: it answers nothing any more."""
        return any(connection.server != -1 and bool(connection.health().broken) for connection in self._connections)

    @contextmanager
    def blocked(self, what: str, ending: bool = False) -> Iterator[None]:
        """While the caller's thread waits for something that other processes must do. ``ending``: they may close connections. One wait may
        be within another, which goes on afterwards."""
        outer = self._blocked, self._ending
        self._blocked, self._ending = what, ending
        self._phase += 1
        try:
            yield
        finally:
            self._blocked = outer[0]
            if self._blocked is not None:  # without an outer wait, connections may still be closed afterwards
                self._ending = outer[1]
            self._phase += 1

    def hurry(self, code: int) -> None:
        """The process ends with an exception: end it with this code if nothing is answered for EXIT_PATIENCE seconds."""
        self._abort, self._code = EXIT_PATIENCE, code
        self._phase += 1

    # -- the thread --------------------------------------------------------------------------------------------------------

    def _look(self, seconds: float) -> None:
        waiting, answers, fault = self._driver.progress()
        if fault:
            self._fail("the scheduler", fault)
        if self._told is not None and self._told():
            self._told = None
            self.hurry(1)
        idle = not waiting and self._blocked is None
        seen = (self._phase, answers)
        if seen != self._seen or idle:
            if self._warned:
                logger.warning("%s: continues after %.0f s without an answer", self._name, self._quiet)
            self._seen, self._quiet, self._warned = seen, 0.0, False
        elif not idle:
            self._quiet += seconds
        if not self._ending or self._quiet > 5 * TICK:
            self._look_for_broken(waiting)
        if idle:
            return
        aborting = self._abort is not None and self._quiet >= self._abort
        if not self._warned and (aborting or self._warn is not None and self._quiet >= self._warn):
            self._warned = True
            logger.error("%s: %s", self._name, self._report(waiting))
        if aborting:
            self._end()

    def _look_for_broken(self, waiting: int) -> None:
        """Report every connection that has broken, once; those to servers while something waits, as only then they matter."""
        for connection in self._connections:
            if connection in self._broken or not (waiting or self._blocked or connection.server == -1):
                continue
            broken = connection.health().broken
            if not broken:
                continue
            self._broken.add(connection)
            if connection.server == -1:
                what = ". Training continues, because it needs only the servers; barriers and the end of the job no longer work"
            else:
                what = f" while {waiting} requests wait for answers. MXNet cannot recover these requests: end the job, and start it again "
                what += "from its last checkpoint"
            logger.error("%s: the connection to %s is lost (%s)%s", self._name, connection.name, broken, what)

    def _end(self) -> None:
        logger.critical("%s: no answer for %.0f s; the process ends with exit code %d", self._name, self._quiet, self._code)
        flush_output()
        faulthandler.dump_traceback(file=2, all_threads=True)
        os._exit(self._code)

    def _report(self, waiting: int) -> str:
        """What is waiting, and for which processes, in lines."""
        units = self._driver.waiting()
        health = [(connection, connection.health()) for connection in self._connections]
        subject = f"{waiting} requests are waiting" if waiting else f"the program is waiting for {self._blocked}"
        lines = [f"no answer for {self._quiet:.0f} s, and {subject}"]
        if waiting and self._blocked:
            lines.append(f"the program is waiting for {self._blocked}")
        links = sorted({link for _, link, *_ in units})
        lines += [link_line(link, units, *next((pair for pair in health if pair[0].server == link >= 0), (None, None))) for link in links]
        if not waiting:
            lines += [f"the connection to {connection.name} is lost ({state.broken})" for connection, state in health if state.broken]
        if links and links[0] >= 0 and len(links) < len([c for c in self._connections if c.server != -1]):
            lines.append("the other servers have answered all requests")
        if units:
            lines.append("longest: " + ", ".join(parameters(units, self._name_of)))
        if self._abort is not None:
            lines.append(
                f"the process ends after {self._abort:g} s (PROPHET_STALL_ABORT)"
                if self._code == EXIT_STALLED
                else f"the process is ending with an exception, and waits {self._abort:g} s for the others"
            )
        return "\n  ".join(lines)


def link_line(link: int, units: List[WaitingUnit], connection: Optional[Connection], state: Optional[Health]) -> str:
    """What is known of one server's requests (-1: those that go to all servers), in one line."""
    mine = [unit for unit in units if unit[1] == link]
    sent = [unit for unit in mine if unit[2] == "sent"]
    name = connection.name if connection else f"server {link}" if link >= 0 else "all servers"
    line = f"{name}: {len(sent)} in flight, {len(mine) - len(sent)} ready"
    undrained = sum(unit[4] is False for unit in sent)
    if state is not None and state.broken:
        verdict = f"the connection is lost ({state.broken}): the server has died, or the network has failed"
    elif not sent:
        verdict = "nothing is on its way to this server: ready units wait until others have been answered"
    elif any(unit[4] is None for unit in sent):
        verdict = "it is not known here whether the bytes have left"
    elif undrained and state is not None and state.resending:
        verdict = f"the bytes of {undrained} are resent and not acknowledged: the network to the server is cut, or its machine is down"
    elif undrained:
        verdict = f"the bytes of {undrained} have not left: the server is not reading (it is stopped or overloaded), or the link is slow"
    else:
        verdict = DRAINED
    return f"{line}; {verdict}"


def parameters(units: List[WaitingUnit], name_of: Callable[[int], str]) -> List[str]:
    """The parameters that wait, longest first, each with its units, their state, and for how long; the first LISTED of them."""
    found: Dict[Tuple[str, str], List[Any]] = {}
    for unit, _, state, seconds, drained in units:
        entry = found.setdefault((name_of(unit), state), [0, seconds, 0])
        entry[0] += 1
        entry[2] += drained is False
    texts = []
    for (name, state), (count, seconds, undrained) in list(found.items())[:LISTED]:
        what = "in flight" if state == "sent" else "ready"
        texts.append(
            f"{name} ({count} unit{'s' if count > 1 else ''} {what} for {seconds:.0f} s{f', {undrained} not drained' if undrained else ''})"
        )
    return texts + ([f"and {len(found) - LISTED} more"] if len(found) > LISTED else [])
