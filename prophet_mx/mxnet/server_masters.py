"""How a server keeps weights in 32 bits for keys that carry changes in 16 bits (halving.py says why), and the addresses of arrays.

Servers get the text of this file with that of slice_optimizer.py. It needs nothing but MXNet.
"""

import ctypes
from typing import Any, Callable

import numpy as np
from mxnet.base import _LIB, check_call

try:  # a server may have another version of prophet_mx, or none
    from prophet_mx._core import change as _compiled_change
except ImportError:
    _compiled_change = None  # type: ignore[assignment]

LARGEST_HALF = 65504.0
PIECE_BITS = 11  # integers of so many bits are exact in half precision
PIECES = 3  # of a number of 32 bits, of at most PIECE_BITS bits each


def address_of(array: Any) -> int:
    """Where the elements of an array in host memory begin; 0 before it is anywhere."""
    pointer = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    return pointer.value or 0


def _numbers(address: int, count: int) -> "np.ndarray[Any, Any]":
    """float32 at an address."""
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))


def _change(master: int, sent: int, change: int, count: int) -> None:
    """change = master - sent in 16 bits, as a number of 32; sent += change. All are addresses of so many elements."""
    if _compiled_change is not None:
        _compiled_change(master, sent, change, count)
        return
    wanted = _numbers(master, count) - _numbers(sent, count)
    finite = np.isfinite(wanted)
    np.copyto(wanted, np.clip(wanted, -LARGEST_HALF, LARGEST_HALF), where=finite)
    _numbers(change, count)[:] = wanted.astype(np.float16)
    _numbers(sent, count)[:] += _numbers(change, count)


class Master:
    """The weights, in 32 bits, of a key whose answers are changes in 16 bits; and what all workers hold.

    They come in pieces: the first PIECES messages of the key carry the bits of the weights, the highest first, as integers that 16 bits
    hold. ``weight`` is the array of the key on the server. Its first ``elements`` are weights.
    """

    def __init__(self, weight: Any, elements: int) -> None:
        self._elements = elements
        self._bits = np.zeros(elements, np.uint32)
        self._missing = PIECES
        self.values, self._sent = weight[:elements].copy(), weight[:elements].copy()

    @property
    def whole(self) -> bool:
        """Whether all pieces are here."""
        return not self._missing

    def take(self, piece: Any) -> None:
        """One more message of the first ones."""
        self._missing -= 1
        self._bits |= piece.asnumpy()[: self._elements].astype(np.uint32) << np.uint32(PIECE_BITS * self._missing)
        if not self._missing:
            self.values[:] = self._sent[:] = self._bits.view(np.float32)
            del self._bits

    def change(self, weight: Any, start: int, stop: int) -> None:
        """Put the change of these elements since the last answer into the array of the key. Waits for their updates."""
        check_call(_LIB.MXNDArrayWaitToRead(self.values.handle))
        check_call(_LIB.MXNDArrayWaitToWrite(weight.handle))
        own, held, out = (address_of(array) + start * 4 for array in (self.values, self._sent, weight))
        _change(own, held, out, stop - start)


class Halved:
    """The updates of a key that carries changes in 16 bits; ``make`` makes those of its master's weights."""

    def __init__(self, master: Master, make: Callable[[Any], Any]) -> None:
        self._master, self._make = master, make
        self._updates: Any = None

    def update(self, weight: Any, grad: Any) -> None:
        if not self._master.whole:
            self._master.take(grad)
            return
        if self._updates is None:
            self._updates = self._make(self._master)
        self._updates.update(weight, grad)
