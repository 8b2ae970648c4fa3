"""One lock, on which all threads of the adapter wait for each other, and the error that ends all waiting."""

import contextlib
import logging
import threading
import time
from typing import Callable, Dict, Iterator, Optional

from ..config import Config
from ..errors import CollectiveError, ProphetError
from ..runtime import start_thread

logger = logging.getLogger("prophet_mx")

TICK = 1.0  # seconds between two looks at the clock while waiting


@contextlib.contextmanager
def as_collective_error() -> Iterator[None]:
    """What PyTorch raises as a RuntimeError when another rank does not come, as a CollectiveError."""
    try:
        yield
    except ProphetError:
        raise
    except RuntimeError as error:
        raise CollectiveError(f"the ranks cannot agree, because a collective failed: {error}") from error


class Wait:
    """One thread of the program that waits: since when, for what, and when the log last said so (``time.monotonic``)."""

    def __init__(self, what: Callable[[], str]) -> None:
        self.began = self.told = time.monotonic()
        self.what = what


class Waiting:
    """``condition`` guards what several threads write; ``failure`` is the first error of one of the adapter's threads.

    Once a second a watchdog thread checks how long the program has waited, also for waits inside PyTorch. It only writes
    to the log: the process group decides when to give up a rank.

    Parameters
    ----------
    config : ``stall_warn``; without it there is no watchdog.
    rank : this one, for the messages.
    """

    def __init__(self, config: Config, rank: int) -> None:
        self.condition = threading.Condition()
        self.failure: Optional[BaseException] = None
        self.closed = False
        self.seconds = 0.0  # that the caller's threads have waited for gradients in all
        self._rank = rank
        self._waits: Dict[int, Wait] = {}  # by the thread that waits
        self._stop = threading.Event()
        self._warn = config.stall_warn
        self._thread: Optional[threading.Thread] = None

    def watch(self) -> None:
        """Start the watchdog, if the settings ask for one. KVStoreError if it cannot be started."""
        if self._warn is not None:
            self._thread = start_thread("watchdog", self._watch, self._warn)

    def fail(self, error: BaseException) -> None:
        """One of the adapter's threads has failed: every call that waits, or will wait, raises."""
        with self.condition:
            self.failure = self.failure or error
            self.condition.notify_all()

    def check(self) -> None:
        """Raise CollectiveError if one of the adapter's threads has failed."""
        if self.failure is not None:
            raise CollectiveError(
                f"rank {self._rank}: gradients can no longer be reduced ({self.failure}). Usually another rank has ended, raised an error, "
                "or exceeded the process group's time-out. End the job, and start it again from its last checkpoint"
            ) from self.failure

    def until(self, reached: Callable[[], bool], what: Callable[[], str]) -> None:
        """Return when ``reached()``, which is called under the lock. ``what`` says for a log line what is waited for.

        Raises CollectiveError if a thread has failed, or the optimizer is closed.
        """
        with self.condition:
            if reached():
                return
            with self.noted(what) as wait:
                try:
                    while not reached():
                        self.check()
                        if self.closed:
                            raise CollectiveError(f"rank {self._rank}: cannot wait for {what()}: the optimizer was closed")
                        self.condition.wait(TICK)
                finally:
                    self.seconds += time.monotonic() - wait.began

    @contextlib.contextmanager
    def blocked(self, what: str) -> Iterator[None]:
        """While PyTorch lets the caller's thread wait for something that other ranks must do; its RuntimeError is a CollectiveError."""
        with self.noted(lambda: what), as_collective_error():
            yield

    def close(self) -> None:
        """Calls that still wait raise, and the watchdog ends."""
        with self.condition:
            self.closed = True
            self.condition.notify_all()
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def leave(self) -> None:
        """In a forked child, which has none of the threads: calls that would wait raise."""
        self.condition = threading.Condition()
        self.failure = self.failure or CollectiveError("this process was forked while they were under way")

    @contextlib.contextmanager
    def noted(self, what: Callable[[], str]) -> Iterator[Wait]:
        """For the watchdog: the caller's thread waits. A signal's handler may wait within a wait."""
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

    def _watch(self, warn: float) -> None:
        """The watchdog: an error in the log for each ``warn`` seconds that a thread has waited."""
        while not self._stop.wait(TICK):
            now = time.monotonic()
            for wait in list(self._waits.values()):
                if now - wait.told >= warn:
                    wait.told = now
                    logger.error(
                        "rank %d has waited %.0f s for %s: another rank is slow, stopped or dead, or has not run the same backward",
                        self._rank,
                        now - wait.began,
                        wait.what(),
                    )
