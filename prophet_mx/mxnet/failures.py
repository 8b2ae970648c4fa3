"""How a worker learns that the optimizer on the servers has failed. MXNet's servers print a traceback then, and answer as if the update had
been made: workers would train on, with parameters that no longer change.

A server writes the failure into the array of a key of prophet_mx, one on each server (``Told`` of slice_optimizer.py). Workers look at it:

1. At the first push, together: all raise the same error.
2. In training, each asks for the arrays now and then as an iteration begins, and reads what came when it asks again. Nothing waits.
   What a worker has found, the others find as well in the next iterations, as they all need each other's gradients. So it goes on for
   ``GRACE`` seconds before it raises an error, at the beginning of an iteration. A worker that then still waits for another one's gradients
   is ended by the watchdog.
3. At the end of the store, when all is answered.
"""

import ctypes
import logging
import time
from typing import TYPE_CHECKING, Any, List, Sequence

import mxnet as mx
import numpy as np
from mxnet.base import check_call

from ..errors import KVStoreError
from .api import PlainStore
from .keys import Key

if TYPE_CHECKING:
    from numpy.typing import NDArray

logger = logging.getLogger("prophet_mx")

ELEMENTS = 400  # characters of a failure
ASK_SECONDS = 0.5  # between two questions, at the least: each is a message to every server
GRACE = 2.0  # seconds in which the other workers find a failure as well


def message(found: str) -> str:
    """The error of a failure."""
    advice = ""
    if "could not load" in found:
        advice = "; servers load it by its module's name, so its class has to be in a module that they can import, and not in the script"
    return f"the optimizer on the servers has failed, and parameters are not updated: {found}{advice}. The servers' logs have the traceback"


def decoded(numbers: "NDArray[np.float32]") -> str:
    """The failure that a server wrote, '' if there is none."""
    return bytes(numbers[numbers > 0].astype(np.uint8)).decode("ascii", "replace")


def raise_if_failed(plain: PlainStore, keys: Sequence[Key]) -> None:
    """KVStoreError if a server has failed. Waits for the servers, but for no worker."""
    found = failure(plain, keys)
    if found:
        raise KVStoreError(message(found))


def failure(plain: PlainStore, keys: Sequence[Key]) -> str:
    """The failure of any server, '' if there is none. Waits for the servers."""
    arrays = [mx.nd.zeros((ELEMENTS,), mx.cpu()) for _ in keys]
    if arrays:
        plain.pull(list(keys), arrays)
    return next(filter(None, (decoded(array.asnumpy()) for array in arrays)), "")


class Failures:
    """One worker's questions while it trains. Called from the store's own thread, but for :meth:`found`."""

    def __init__(self, plain: PlainStore, keys: List[Key]) -> None:
        self._plain = plain
        self.keys = keys
        self._arrays = [mx.nd.zeros((ELEMENTS,), mx.cpu()) for _ in keys]  # in memory that is read here, whatever the program's device
        for array in self._arrays:
            array.wait_to_read()
        self._memory = [_memory(array) for array in self._arrays]
        self._asked = time.monotonic()
        self._known = ""
        self._known_since = 0.0

    def found(self) -> str:
        """What the answers so far tell, '' if nothing. From any thread; never waits."""
        return next(filter(None, map(decoded, self._memory)), "")

    def iteration_begins(self) -> None:
        """Look at the last answers, and ask again. KVStoreError if a server has failed, and the others know as well."""
        now = time.monotonic()
        if now - self._asked < ASK_SECONDS or not self.keys:
            return
        self._asked = now
        if not self._known:
            self._known, self._known_since = self.found(), now
            if self._known:
                logger.error("%s", message(self._known))
        elif now - self._known_since >= GRACE:
            raise KVStoreError(message(self.found()))
        self._plain.pull(self.keys, self._arrays)


def _memory(array: Any) -> "NDArray[np.float32]":
    """An array's memory, which can be read while it is written."""
    pointer = ctypes.c_void_p()
    check_call(mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    return np.ctypeslib.as_array((ctypes.c_float * array.size).from_address(pointer.value or 0))
