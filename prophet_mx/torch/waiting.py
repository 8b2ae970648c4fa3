"""One lock, on which all threads of the adapter wait for each other, and the error that ends all waiting."""

import contextlib
import threading
import time
from typing import Callable, Iterator, Optional

from ..config import Config
from ..errors import CollectiveError, ProphetError
from ..monitoring.watchdog import TICK, WaitWatch

WHY = "another rank is slow, stopped or dead, or has not run the same backward"


@contextlib.contextmanager
def as_collective_error() -> Iterator[None]:
    """What PyTorch raises as a RuntimeError when another rank does not come, as a CollectiveError."""
    try:
        yield
    except ProphetError:
        raise
    except RuntimeError as error:
        raise CollectiveError(f"the ranks cannot agree, because a collective failed: {error}") from error


class Waiting:
    """``condition`` guards what several threads write; ``failure`` is the first error of one of the adapter's threads.

    The watchdog checks how long the program has waited, also for waits inside PyTorch. The process group decides when to give up a rank.

    Parameters
    ----------
    config : ``stall_warn``.
    rank : this one, for the messages.

    Attributes
    ----------
    noted : see :meth:`WaitWatch.noted`.
    seconds : that the caller's threads have waited for gradients in all.
    """

    def __init__(self, config: Config, rank: int) -> None:
        self.condition = threading.Condition()
        self.failure: Optional[BaseException] = None
        self.closed = False
        self.seconds = 0.0
        self._rank = rank
        self._watch = WaitWatch(config.stall_warn, rank, WHY)
        self.noted = self._watch.noted

    def watch(self) -> None:
        """Start the watchdog, if the settings ask for one. KVStoreError if it cannot be started."""
        self._watch.start()

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
        self._watch.close()

    def leave(self) -> None:
        """In a forked child, which has none of the threads: calls that would wait raise."""
        self.condition = threading.Condition()
        self.failure = self.failure or CollectiveError("this process was forked while they were under way")
