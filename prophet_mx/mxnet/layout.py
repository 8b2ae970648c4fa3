"""The layout on which all workers agree at the first push: which gradients are cut, what the slices are called, where each unit has its
place in the orders, and how optimizers are wrapped for the servers. Pure bookkeeping; how workers agree is in negotiation.py."""

import pickle
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ..planning.orders import Orders
from ..planning.placement import SURE, most_elements
from ..planning.units import MAX_PARTS, Slice, cut
from .keys import Key, KeyBook
from .slice_optimizer import SliceOptimizer, may_know_numbers

LATE = 1 << 60  # where the positions of keys begin that are not in the layout


def late_position(key: Key) -> int:
    """The place in the total order of a key that is not in the layout. It follows from the key alone, as workers may use such keys in any
    order.

    >>> late_position(3) < late_position(4)
    True
    """
    if isinstance(key, int):
        return LATE + key
    return LATE + int.from_bytes(blake2b(key.encode(errors="surrogatepass"), digest_size=7).digest(), "big")


class Wrapping(NamedTuple):
    """What :class:`SliceOptimizer` has to know of the layout, to wrap an optimizer for the servers. Keys are numbers on the servers."""

    parameters: Dict[int, int]  # slice -> its parameter
    service: List[int]  # keys for messages between workers
    probes: List[int]  # keys with which it was measured what a message costs
    first: int  # of our own keys
    last: int
    strings: bool  # whether the caller's keys are strings
    groups: Optional[Dict[int, Tuple[Tuple[int, int], ...]]] = None  # group -> number and elements of each member
    workers: int = 1

    def wrap(self, optimizer: bytes) -> SliceOptimizer:
        """The optimizer that the servers need, around a pickled one: it knows the slices, and that later keys are numbered after them."""
        return SliceOptimizer(pickle.loads(optimizer), *self)

    def shifts(self, optimizer: Any) -> bool:
        """Whether it matters to an optimizer that later keys are numbered after ours."""
        return self.strings and may_know_numbers(optimizer, self.first)


@dataclass(frozen=True)
class Layout:
    """The same on every worker. It never changes: new orders make a new one (:meth:`ordered`). By default every gradient is whole."""

    keys: KeyBook  # also has the keys that come later
    scheduled: bool = True
    wrapping: Optional[Wrapping] = None  # of optimizers, if they are wrapped
    unit: int = 0  # bytes; 0: all gradients whole
    message: float = 0.0  # seconds that a message takes as rank 0 measured it while all workers sent, 0 if nothing was
    slices: Dict[Key, List[Slice]] = field(default_factory=dict)  # of the keys that are cut
    slice_keys: Dict[Key, List[Key]] = field(default_factory=dict)
    order_key: Optional[Key] = None  # for messages with new orders, if the workers exchange any
    known: Dict[Key, None] = field(default_factory=dict)  # the keys that are in it, in the order of init
    places: Dict[Tuple[Key, int], Tuple[int, int]] = field(default_factory=dict)  # rank and position of each unit, if agreed on

    def ordered(self, orders: Orders) -> "Layout":
        """The same, but with these orders of its units."""
        return replace(self, places=dict(zip(self.units(), zip(orders.ranks, orders.positions))))

    def units(self) -> List[Tuple[Key, int]]:
        """Each unit as a key and the number of the part, in the order of init."""
        return [(key, part) for key in self.known for part in range(len(self.keys_of(key)))]

    def keys_of(self, key: Key) -> List[Key]:
        """The keys of a parameter's units."""
        return self.slice_keys.get(key, [key])

    def is_late(self, key: Key) -> bool:
        """Whether the key came after the workers had agreed."""
        return bool(self.known) and key not in self.known

    def order_of(self, key: Key, part: int) -> Tuple[int, int]:
        """Rank and position of a unit: as agreed, or else both by the order of init on rank 0. Keys that are not in the layout, as they
        came late or from before the store was wrapped, follow all others; their ranks are this worker's own."""
        agreed = self.places.get((key, part))
        if agreed is not None:
            return agreed
        place = len(self.places) + self.keys.gradients[key] * MAX_PARTS + part
        return place, place if key in self.known else late_position(key)

    def sizes(self) -> List[Tuple[int, int]]:
        """Gradient and bytes of each unit."""
        return [(self.keys.gradients[key], self.keys.shapes[key].bytes // len(self.keys_of(key))) for key, _ in self.units()]


def slices_of(keys: KeyBook, unit: int) -> Tuple[Dict[Key, List[Slice]], str]:
    """The slices of each key that is cut into units of about ``unit`` bytes. If MXNet cannot place so many, there are none, and a text says
    why; else it is ''."""
    found = {}
    most = most_elements(keys.servers, keys.bigarray)
    for key, shape in keys.shapes.items():
        parts = cut(shape.elements, shape.bytes // max(1, shape.elements), unit, most)
        if len(parts) > 1:
            found[key] = parts
    count = sum(map(len, found.values()))
    if keys.servers > 1 and keys.texts and keys.count + count >= SURE:
        return {}, f"units of {unit} bytes would make {count} slices, but MXNet can place only {SURE} keys on several servers"
    return found, ""
