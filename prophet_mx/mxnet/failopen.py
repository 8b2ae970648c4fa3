"""What happens when a part of prophet_mx fails: training goes on without it."""

import logging
import threading
from typing import Union

from .. import _core

logger = logging.getLogger("prophet_mx")


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
