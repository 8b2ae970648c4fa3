"""One lock, on which all threads of the adapter wait for each other, and the error that ends all waiting."""

import contextlib
import logging
import threading
import time
from typing import Callable, Iterator, Optional

from ..config import Config
from ..errors import CollectiveError, ProphetError

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
        raise CollectiveError(f"the ranks cannot settle something together: {error}") from error


class Waiting:
    """``condition`` guards what several threads write; ``failure`` is the first error of one of our threads."""

    def __init__(self, config: Config, rank: int) -> None:
        self.condition = threading.Condition()
        self.failure: Optional[BaseException] = None
        self.closed = False
        self.seconds = 0.0  # that the caller's threads have waited in all
        self._warn = config.stall_warn
        self._rank = rank

    def fail(self, error: BaseException) -> None:
        """One of our threads cannot go on: whoever waits, or will, raises."""
        with self.condition:
            self.failure = self.failure or error
            self.condition.notify_all()

    def check(self) -> None:
        """Raise CollectiveError if one of our threads has failed."""
        if self.failure is not None:
            raise CollectiveError(
                f"rank {self._rank}: gradients cannot be reduced any more ({self.failure}); usually another rank has ended, raised, or did "
                "not come within the time that its process group allows. End the job, and start it again from its last checkpoint"
            ) from self.failure

    def until(self, reached: Callable[[], bool], what: Callable[[], str]) -> None:
        """Return when ``reached()``, which is called under the lock. ``what`` says for a log line what is waited for.

        Raises CollectiveError if a thread has failed, or the optimizer is closed.
        """
        began = warned = last = time.monotonic()
        with self.condition:
            while not reached():
                self.check()
                if self.closed:
                    raise CollectiveError(f"rank {self._rank}: {what()} is not there any more, as the optimizer was closed")
                self.condition.wait(TICK)
                now = time.monotonic()
                self.seconds += now - last
                last = now
                if self._warn is not None and now - warned >= self._warn:
                    warned = now
                    logger.error(
                        "rank %d: has waited for %s for %.0f s: another rank is slow, stopped or dead, or has not run the same backward",
                        self._rank,
                        what(),
                        now - began,
                    )
