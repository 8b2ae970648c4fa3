"""Which parameters each iteration pushes, and a log line when that changes: buckets, frozen layers, parameters added later."""

import logging
from typing import Optional, Set

logger = logging.getLogger("prophet_mx")

LINES = 5  # in the log at most: a job with buckets changes its set all the time
NAMES = 4  # named per line


class KeySets:
    """One worker's record, by gradient name. Called by the thread that pushes."""

    def __init__(self) -> None:
        self._before: Optional[Set[str]] = None
        self._lines = 0

    def iteration_ends(self, iteration: int, pushed: Set[str]) -> None:
        """The iteration of this number has pushed these, and pushes nothing more."""
        before, self._before = self._before, pushed
        if before is None or before == self._before or self._lines >= LINES:
            return
        self._lines += 1
        missing, added = before - self._before, self._before - before
        changes = [
            f"{len(names)} {what} ({', '.join(sorted(names)[:NAMES])}{', ...' if len(names) > NAMES else ''})"
            for names, what in ((missing, "no longer"), (added, "that it did not push before"))
            if names
        ]
        logger.info(
            "iteration %d pushed %d parameters: %s; nothing waits for a parameter that is not pushed%s",
            iteration,
            len(self._before),
            " and ".join(changes),
            "" if self._lines < LINES else "; further changes are not logged",
        )
