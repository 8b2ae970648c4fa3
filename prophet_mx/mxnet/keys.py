"""The keys of a store: which there are, in what order, what the server calls them and where it keeps them. Pure bookkeeping."""

from itertools import chain, islice
from typing import Dict, List, NamedTuple, Optional, Tuple, Union

from ..planning.placement import FACTOR

Key = Union[str, int]

OWN_INTS = 100_000  # where prophet_mx's own int keys begin
MAX_KEY = 2**31 - 1  # MXNet hands int keys on in 32 bits
SURE = MAX_KEY // FACTOR  # the last number of a key that MXNet can place whatever the number of servers
WIDE = -1  # the place of a key that is spread over all servers


class Shape(NamedTuple):
    """What a dense key holds."""

    shape: Tuple[int, ...]
    dtype: type
    elements: int
    bytes: int


def _product(number: int) -> int:
    """What MXNet's multiplication of a key's number gives: it is one of 32 bits, which overflows above SURE."""
    return (number * FACTOR + 2**31) % 2**32 - 2**31


class KeyBook:
    """Numbers keys as MXNet does and tells which server holds them.

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
        self.initialised: Dict[Key, None] = {}  # the caller's keys that this book saw made
        self._numbers: Dict[Key, int] = {}
        self._made = 0
        self.complete = True  # False once a key was used that this book did not see made; rank 0's, when all met

    def made(self, key: Key) -> None:
        """A key was made on the servers, by anyone."""
        self._numbers[key] = self._made if isinstance(key, str) else key
        self._made += 1

    def add(self, key: Key, shape: Optional[Shape]) -> None:
        """The caller made a key; ``shape`` is None if it is not dense."""
        self.made(key)
        self.initialised[key] = None
        self.gradients.setdefault(key, len(self.gradients))
        if shape is not None:
            self.shapes[key] = shape

    @property
    def count(self) -> int:
        """How many keys were made: the number of the next one, if it is a text."""
        return self._made

    @property
    def texts(self) -> bool:
        """Whether keys are texts, which are numbered as they are made."""
        return isinstance(next(iter(self._numbers), 0), str)

    def gradient(self, key: Key) -> int:
        """The index of one of the caller's keys; one not seen before comes last."""
        if key not in self.gradients:
            self.complete = self.complete and isinstance(key, int)
            self.gradients[key] = len(self.gradients)
        return self.gradients[key]

    def number(self, key: Key) -> Optional[int]:
        """What the server calls the key; None if that is not known."""
        if isinstance(key, int):
            return key
        return self._numbers.get(key) if self.complete else None

    def new_keys(self, count: int) -> List[Key]:
        """Names for ``count`` more keys of the kind this store uses, which no caller's key has or is likely to get."""
        # Of a store that was wrapped late, the first key that is used tells the kind.
        taken = {key for key in (*self._numbers, *self.gradients) if isinstance(key, int)}
        if taken:
            first = max(OWN_INTS, 1 + max(taken))
            # A negative product is no server, or always the first one.
            free = (
                number
                for number in chain(range(first, MAX_KEY + 1), range(OWN_INTS, first))
                if _product(number) >= 0 and number not in taken
            )
            return list(islice(free, count))
        return [f"prophet_mx:{len(self._numbers) + i}" for i in range(count)]

    def server_of(self, key: Key, elements: int) -> int:
        """The server that holds a key of ``elements`` elements, or WIDE."""
        if self.servers == 1:
            return 0
        number = self.number(key)
        if elements >= self.bigarray or number is None:
            return WIDE
        return _product(number) % self.servers

    def unplaceable(self, key: Key, ahead: int, elements: int) -> Optional[int]:
        """The number of a new key if MXNet cannot place it, else None. ``ahead`` keys are made before it.

        With several servers, a small key goes to the one of the remainder of its product, which in C++ may be negative.
        """
        number = key if isinstance(key, int) else self._made + ahead
        product = _product(number)
        return number if product < 0 and product % self.servers and elements < self.bigarray else None

    def is_own(self, key: Key) -> bool:
        """Whether this is a key that prophet_mx made for itself."""
        return key in self._numbers and key not in self.initialised

    def smallest_on(self, server: int) -> Optional[Key]:
        """The smallest dense key that is on this server alone."""
        here = [key for key, shape in self.shapes.items() if shape.elements and self.server_of(key, shape.elements) == server]
        return min(here, key=lambda key: self.shapes[key].bytes) if here else None
