"""Gradients that travel in 16 bits: which may, how large a number may be, and how the servers get weights in 32 bits.

A worker adds to a gradient what 16 bits did not hold of those before, and sends the sum in 16 bits. Servers add up in 32 bits. With an
optimizer, a server updates weights in 32 bits, and answers with their change in 16 bits, including what these did not hold of the changes
before. All workers add it to what they have, and so have the same weights. Without an optimizer the sum itself is the answer, rounded once.
The conversions are compiled (halves.pxd); the server's part is in server_masters.py.

MXNet's server adds 16 bits up in 32 only in its mode for optimizers with several precisions, and then does so for all types but float32.
So other types and 16 bits on the wire exclude each other. A key has one type for what is sent and what is answered, so that every unit
that travels in 16 bits has a key of its own. The caller's key keeps the initial value.
"""

from typing import Iterator

import numpy as np
from numpy.typing import NDArray

from .keys import KeyBook, Shape
from .server_masters import LARGEST_HALF, PIECE_BITS, PIECES

SUM_IN_32_BITS = 1  # the command to servers; MXNet's kSetMultiPrecision


def may_travel(shape: Shape) -> bool:
    """Whether the gradient of a dense key may travel in 16 bits. Vectors, as biases and the parameters of normalisation, are few bytes of a
    model, and stay in 32."""
    return np.dtype(shape.dtype) == np.float32 and len(shape.shape) > 1 and shape.elements > 0


def wire_bytes(shape: Shape, halved: bool) -> int:
    """Bytes of a gradient on the wire."""
    return shape.bytes // 2 if halved else shape.bytes


def other_type(keys: KeyBook) -> str:
    """A key that is not of float32, and of what it is; '' if there is none."""
    for key, shape in (*keys.shapes.items(), *keys.sparse_shapes.items()):
        if np.dtype(shape.dtype) != np.float32:
            return f"key {key!r:.80} is {np.dtype(shape.dtype)}"
    return ""


def largest(sums: bool, workers: int) -> float:
    """The largest number that a worker sends. With ``sums`` the answer is what all workers send together, which 16 bits have to hold.

    >>> largest(False, 8), largest(True, 2), largest(True, 3)
    (65504.0, 32752.0, 21824.0)
    """
    if not sums:
        return LARGEST_HALF
    number = np.float16(LARGEST_HALF / workers)
    return float(number if float(number) * workers <= LARGEST_HALF else np.nextafter(number, np.float16(0)))


def pieces(values: "NDArray[np.float32]") -> Iterator["NDArray[np.float16]"]:
    """The bits of numbers, as integers that are exact in 16 bits: the highest first. :class:`~.server_masters.Master` puts them together.

    >>> [piece.tolist() for piece in pieces(np.array([1.0], np.float32))]
    [[254.0], [0.0], [0.0]]
    """
    bits = np.ascontiguousarray(values).view(np.uint32)
    for place in reversed(range(PIECES)):
        yield (bits >> np.uint32(PIECE_BITS * place) & np.uint32((1 << PIECE_BITS) - 1)).astype(np.float16)
