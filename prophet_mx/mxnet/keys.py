"""The keys of a store: which there are, in what order, what the server calls them and where it keeps them. Pure bookkeeping.

All workers use rank 0's keys: slices, the numbers of their keys, their servers and the orders all follow from the keys, their shapes and
their order. The order of int keys need not be the same: an int key is its own number on the servers, and a worker takes rank 0's order.
"""

from itertools import chain, islice
from math import prod
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

import mxnet as mx
import numpy as np
from mxnet.ndarray.ndarray import _DTYPE_MX_TO_NP, _DTYPE_NP_TO_MX

from ..planning.placement import FACTOR, SURE, product, server_of, slice_numbers

Key = Union[str, int]

OWN_INTS = 100_000  # where prophet_mx's own int keys begin
MAX_KEY = 2**31 - 1  # MXNet hands int keys on in 32 bits
WIDE = -1  # the place of a key that is spread over all servers
# The int keys of the meeting (meeting.py): the same on all workers, whatever keys these have made, and numbers that MXNet can place.
MEETING_INTS = tuple(islice((number for number in range(2 * 10**9, MAX_KEY) if product(number) >= 0), 2))

_FLAGS = {np.dtype(dtype): flag for dtype, flag in _DTYPE_NP_TO_MX.items() if dtype is not None}


class Shape(NamedTuple):
    """The shape, type and size of a key's array, as if it were dense."""

    shape: Tuple[int, ...]
    dtype: type
    elements: int
    bytes: int


Entry = Tuple[Key, Optional[Shape]]  # the shape is None if the key is not dense


def shape_of(array: mx.nd.NDArray) -> Shape:
    """The shape, type and size of an array."""
    dtype = np.dtype(array.dtype)  # a class, or of MXNet's NumPy arrays and of bfloat16 an instance
    elements = prod(array.shape)  # sparse arrays have no size
    return Shape(array.shape, array.dtype, elements, elements * dtype.itemsize)


class KeyBook:
    """Numbers keys as MXNet does, and knows which server holds each.

    MXNet's server knows keys by int. A string key gets the next int when it is made; an int key is its own (kvstore_local.h). A small
    array lives on one server, a large one is spread over all (kvstore_dist.h, EncodeDefaultKey).

    Parameters
    ----------
    servers : how many there are.
    bigarray : elements from which on an array is spread (``MXNET_KVSTORE_BIGARRAY_BOUND``).
    """

    def __init__(self, servers: int, bigarray: int) -> None:
        self.servers = servers
        self.bigarray = bigarray
        self.gradients: Dict[Key, int] = {}  # the caller's keys -> index in the order of init: forward order, by custom
        self.shapes: Dict[Key, Shape] = {}  # of dense keys
        self.sparse_shapes: Dict[Key, Shape] = {}  # of the others, as far as this worker made them
        self.initialised: Dict[Key, None] = {}  # the caller's keys that this book saw made
        self._numbers: Dict[Key, int] = {}
        self._made = 0
        self.calls = 0  # of the caller, that made keys; each waits for the other workers
        self.barriers = 0  # of the caller
        self.optimizer_set = 0  # what `waits` was when the caller set its newest optimizer
        self.complete = True  # False once a key was used that this book did not see made; rank 0's, when all met
        self.texts: Optional[bool] = None  # whether keys are texts, which are numbered as they are made; None while that is not known

    def made(self, key: Key) -> None:
        """A key was made on the servers, by anyone."""
        self._note_kind(key)
        self._numbers[key] = self._made if isinstance(key, str) else key
        self._made += 1

    def _note_kind(self, key: Key) -> None:
        self.texts = isinstance(key, str)

    @property
    def waits(self) -> int:
        """How often the caller has waited for all other workers."""
        return self.calls + self.barriers

    def add(self, key: Key, shape: Optional[Shape], sparse: Optional[Shape] = None) -> None:
        """The caller has made a key; ``shape`` is None if it is not dense, and ``sparse`` is then its shape, if that counts."""
        self.made(key)
        self.initialised[key] = None
        self.gradients.setdefault(key, len(self.gradients))
        if shape is not None:
            self.shapes[key] = shape
        elif sparse is not None:
            self.sparse_shapes[key] = sparse

    @property
    def count(self) -> int:
        """How many keys were made: the number of the next one, if it is a text."""
        return self._made

    def aligned(self, count: int) -> None:
        """Number text keys from ``count`` on, as rank 0 does."""
        self._made = count

    def adopt(self, entries: Iterable[Tuple[Key, Optional[Shape]]]) -> None:
        """Take the caller's keys of rank 0, in its order, in place of this worker's; what prophet_mx made stays."""
        own = {key: number for key, number in self._numbers.items() if key not in self.initialised}
        shapes = dict(entries)
        self.gradients = {key: index for index, key in enumerate(shapes)}
        self.initialised = dict.fromkeys(shapes)
        self.shapes = {key: shape for key, shape in shapes.items() if shape is not None}
        self._numbers = {key: index if isinstance(key, str) else key for key, index in self.gradients.items()}
        self._numbers.update(own)

    def gradient(self, key: Key) -> int:
        """The index of one of the caller's keys; one not seen before comes last."""
        if key not in self.gradients:
            self._note_kind(key)
            self.complete = self.complete and isinstance(key, int)
            self.gradients[key] = len(self.gradients)
        return self.gradients[key]

    def number(self, key: Key) -> Optional[int]:
        """The number of a key on the servers; None if that is not known."""
        if isinstance(key, int):
            return key
        return self._numbers.get(key) if self.complete else None

    def new_keys(self, count: int) -> List[Key]:
        """Names for ``count`` more keys of the kind this store uses, which no caller's key has or is likely to get."""
        if self.texts is False:
            return list(islice(self._free(self._taken()), count))
        return [f"prophet_mx:{self._made + i}" for i in range(count)]

    def _taken(self) -> Set[int]:
        """All int keys that are in use, but those of the meeting."""
        return {key for key in (*self._numbers, *self.gradients) if isinstance(key, int) and key not in MEETING_INTS}

    def _free(self, taken: Set[int]) -> Iterator[int]:
        """Int keys that are not taken, on each server in turn."""
        first = max(OWN_INTS, 1 + max(taken, default=0))
        for number in chain(range(first, MAX_KEY + 1), range(OWN_INTS, first)):
            # MXNet places a number whose product is negative on no server, or always on the first.
            if product(number) >= 0 and number not in taken and number not in MEETING_INTS:
                yield number

    def key_on_each_server(self) -> List[Key]:
        """Names for new keys, one on each server, as their arrays are small; none if MXNet may be unable to place them."""
        if self.texts is False:
            free = self._free(self._taken())
            found: Dict[Optional[int], Key] = {}
            while len(found) < self.servers:
                number = next(free)
                found.setdefault(server_of(number, self.servers), number)
            return [found[server] for server in range(self.servers)]
        last = self._made + self.servers
        return self.new_keys(self.servers) if self.servers == 1 or last < SURE and self.servers % FACTOR else []

    def slice_keys(self, slices: Sequence[int], whole: Iterable[Key], message: int = 0) -> Tuple[List[Key], List[Key]]:
        """Returns names for the keys of slices and groups, and all keys that have to be made for them, in the order of making. The last of
        these is free for another use.

        ``slices`` are the bytes of the slices and groups, most urgent first. Their keys are chosen so that servers have about the same to
        do, with ``whole``, the keys of whole gradients, counted in. ``message`` is what each counts besides its bytes (see
        :func:`~prophet_mx.planning.placement.even_servers`). Text keys are numbered as they are made, so that some are made for nothing but
        their numbers.
        """
        loads = [0] * self.servers
        for key in whole:
            server = self.server_of(key, self.shapes[key].elements)
            if server != WIDE:
                loads[server] += self.shapes[key].bytes + message
        if self.texts is False:
            taken = self._taken()
            chosen = slice_numbers(slices, loads, self._free(taken), message)
            own: List[Key] = [*chosen, next(self._free(taken.union(chosen)))]
            return own[:-1], own
        numbers = slice_numbers(slices, loads, range(self._made, SURE if self.servers > 1 else MAX_KEY), message)
        names = self.new_keys(max(numbers, default=self._made - 1) + 2 - self._made)
        return [names[number - self._made] for number in numbers], names

    def spread(self, elements: int) -> bool:
        """Whether MXNet spreads an array of so many elements over all servers."""
        return self.servers > 1 and elements >= self.bigarray

    def server_of(self, key: Key, elements: int) -> int:
        """The server that holds a key of ``elements`` elements, or WIDE."""
        if self.servers == 1:
            return 0
        number = self.number(key)
        server = None if elements >= self.bigarray or number is None else server_of(number, self.servers)
        return WIDE if server is None else server

    def unplaceable(self, key: Key, ahead: int, elements: int) -> Optional[int]:
        """The number of a new key if MXNet cannot place it, else None. ``ahead`` keys are made before it."""
        number = key if isinstance(key, int) else self._made + ahead
        return number if server_of(number, self.servers) is None and elements < self.bigarray else None

    def is_own(self, key: Key) -> bool:
        """Whether this is a key that prophet_mx made for itself."""
        return key in MEETING_INTS or key in self._numbers and key not in self.initialised

    def smallest_on(self, server: int) -> Optional[Key]:
        """The smallest dense key that is on this server alone."""
        here = [key for key, shape in self.shapes.items() if shape.elements and self.server_of(key, shape.elements) == server]
        return min(here, key=lambda key: self.shapes[key].bytes) if here else None


def encoded_keys(book: KeyBook) -> List[List[Any]]:
    """The keys that this worker made, in its order, of types that JSON has."""
    shapes = ((key, book.shapes.get(key)) for key in book.initialised)
    return [[key] if shape is None else [key, shape.shape, _FLAGS[np.dtype(shape.dtype)], shape.bytes] for key, shape in shapes]


def decoded_keys(entries: Sequence[Sequence[Any]]) -> List[Entry]:
    """The keys that :func:`encoded_keys` encoded on rank 0."""
    return [(key, _shape(*dense) if dense else None) for key, *dense in entries]


def _shape(shape: Sequence[int], flag: int, size: int) -> Shape:
    dtype = _DTYPE_MX_TO_NP[flag]
    return Shape(tuple(shape), dtype, size // np.dtype(dtype).itemsize, size)


def first_difference(book: KeyBook, theirs: Sequence[Entry], more: int, alike: bool) -> str:
    """The first difference from rank 0's keys that prevents training together, in words; '' if there is none.

    ``more`` says how many more text keys this worker has made than rank 0, before or after its store was wrapped. If it is 0, the worker
    has all of them, and takes over what rank 0 knows of those that it made before. Nothing tells how many int keys were made before: a
    worker that has not seen all of rank 0's made may lack some, unless it has made as many calls (``alike``).
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
