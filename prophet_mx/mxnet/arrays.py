"""Small helpers on MXNet arrays."""

import ctypes
from typing import Any, List, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet.base import NDArrayHandle, check_call

from ..planning.units import Slice, together
from .keys import Shape

Chunk = Tuple[mx.nd.NDArray, int, int, int]  # some neighbouring units: their array, how many, the first element and the end
Arrays = Tuple[mx.nd.NDArray, List[mx.nd.NDArray]]  # a parameter's buffer, and its units in the same memory


def as_list(value: Any) -> List[mx.nd.NDArray]:
    """One array, or a list with one array per device, as a list."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


def shape_of(array: mx.nd.NDArray) -> Shape:
    """What the array holds."""
    dtype = np.dtype(array.dtype)  # a class, or of MXNet's NumPy arrays and of bfloat16 an instance
    return Shape(array.shape, array.dtype, array.size, array.size * dtype.itemsize)


def type_name(dtype: Any) -> str:
    """What the type of an array's elements is called."""
    names = np.dtype(dtype).names
    return names[0] if names else np.dtype(dtype).name


def alias(array: mx.nd.NDArray) -> mx.nd.NDArray:
    """An array over the same memory, with an engine variable of its own: ops on it do not wait for ops on the original.

    Through DLPack's C functions: the Python ones would wait for the original's pending ops.
    """
    managed, handle = ctypes.c_void_p(), NDArrayHandle()
    check_call(mx.base._LIB.MXNDArrayToDLPack(array.handle, ctypes.byref(managed)))
    check_call(mx.base._LIB.MXNDArrayFromDLPackEx(managed, ctypes.c_bool(False), ctypes.byref(handle)))
    return mx.nd.NDArray(handle)


def new_arrays(shape: Tuple[int, ...], dtype: type, context: mx.Context, parts: Sequence[Slice]) -> Arrays:
    """A parameter's buffer, and arrays of its units: of ``parts``, or the buffer itself if there are none."""
    buffer = mx.nd.empty(shape, ctx=context, dtype=dtype)
    if not parts:
        return buffer, [buffer]
    flat = buffer.reshape((-1,))
    return buffer, [alias(flat[part.start : part.stop]) for part in parts]


def new_chunks(buffer: mx.nd.NDArray, units: Sequence[mx.nd.NDArray], parts: Sequence[Slice], least: int) -> List[Chunk]:
    """The units of a buffer, in the order of ``parts``, in chunks of ``least`` bytes or more; none if one chunk would have them all."""
    counts = together([shape_of(unit).bytes for unit in units], least)
    if len(counts) < 2:
        return []
    flat = buffer.reshape((-1,))
    chunks: List[Chunk] = []
    first = 0
    for count in counts:
        start, stop = parts[first].start, parts[first + count - 1].stop
        chunks.append((units[first] if count == 1 else alias(flat[start:stop]), count, start, stop))
        first += count
    return chunks


def flat_parts(array: mx.nd.NDArray, chunks: Sequence[Chunk]) -> List[mx.nd.NDArray]:
    """The elements of each chunk, in the memory of an array that is known to be plain."""
    with mx.autograd.pause():
        flat = array.reshape((-1,))
        return [flat[start:stop] for _, _, start, stop in chunks]
