"""Rank 0's keys, which all workers use: in a form that a message can carry, and in words for a worker that has made others. Pure.

Slices, the numbers of their keys, their servers and the orders all follow from the keys, their shapes and their order, so these have to be
the same on all workers. The order of int keys need not be: an int key is its own number on the servers, and a worker takes rank 0's order.
"""

from typing import Any, List, Optional, Sequence, Tuple

import numpy as np
from mxnet.ndarray.ndarray import _DTYPE_MX_TO_NP, _DTYPE_NP_TO_MX

from .keys import Key, KeyBook, Shape

Entry = Tuple[Key, Optional[Shape]]  # the shape is None if the key is not dense

_FLAGS = {np.dtype(dtype): flag for dtype, flag in _DTYPE_NP_TO_MX.items() if dtype is not None}


def encoded(book: KeyBook) -> List[List[Any]]:
    """The keys that this worker made, in its order, of types that JSON has."""
    shapes = ((key, book.shapes.get(key)) for key in book.initialised)
    return [[key] if shape is None else [key, shape.shape, _FLAGS[np.dtype(shape.dtype)], shape.bytes] for key, shape in shapes]


def decoded(entries: Sequence[Sequence[Any]]) -> List[Entry]:
    """What :func:`encoded` gave elsewhere."""
    return [(key, _shape(*dense) if dense else None) for key, *dense in entries]


def _shape(shape: Sequence[int], flag: int, size: int) -> Shape:
    dtype = _DTYPE_MX_TO_NP[flag]
    return Shape(tuple(shape), dtype, size // np.dtype(dtype).itemsize, size)


def first_difference(book: KeyBook, theirs: Sequence[Entry], more: int, alike: bool) -> str:
    """The first key in which this worker's differ from rank 0's such that they cannot train together, in words; '' if there is none.

    ``more`` says how many more text keys this worker has made than rank 0, seen or not. If it is 0, a worker that has not seen the first
    ones made, as it was wrapped later than rank 0, takes over what rank 0 knows of them. Of int keys that is not known: a worker that has
    not seen some made, and has not made as many calls (``alike``), may lack them.
    """
    places = {key: place for place, (key, _) in enumerate(theirs)}
    unseen = more + len(theirs) - len(book.initialised)  # text keys from before this store was wrapped
    for place, key in enumerate(book.initialised, unseen):
        if book.texts and places.get(key) != place:
            other = f"{theirs[place][0]!r:.80}" if 0 <= place < len(theirs) else "none"
            return f"text key {place} is {key!r:.80} here, {other} on rank 0"
        if key not in places:
            return f"key {key!r} was initialised here, but not on rank 0"
        here, there = _shown(book.shapes.get(key)), _shown(theirs[places[key]][1])
        if here != there:
            return f"key {key!r:.80} is {here} here, {there} on rank 0"
    if more > 0:
        return f"{more} more were initialised here"
    missing = [key for key in places if key not in book.initialised]
    if missing and (more if book.texts else not alike):
        after = "" if book.texts else " after the store was wrapped"
        return f"key {missing[0]!r:.80} was initialised on rank 0, but not here{after}"
    return f"{-more} fewer were initialised here" if more else ""


def _shown(shape: Optional[Shape]) -> str:
    return "sparse" if shape is None else f"{shape.shape} {np.dtype(shape.dtype)}"
