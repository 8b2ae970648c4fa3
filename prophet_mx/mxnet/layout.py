"""The layout on which all workers agree at the first push: which gradients are cut, what the slices are called, where each unit has its
place in the orders, and how optimizers are wrapped for the servers. Pure bookkeeping; how workers agree is in negotiation.py."""

import pickle
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Container, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..planning.orders import Orders
from ..planning.placement import SURE, has_chosen_key, most_elements
from ..planning.units import MAX_PARTS, Slice, cut, groups
from ..sizes import MIN_UNIT
from .halving import may_travel, wire_bytes
from .keys import Key, KeyBook
from .optimizers import may_know_numbers
from .slice_optimizer import SliceOptimizer

GROUPED = ("float16", "float32", "float64", "halved")  # types of gradients that may share a message
MOST_WORKERS = 2048  # a word of each such type counts up to so many exactly

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
    groups: Dict[int, Tuple[Tuple[int, int], ...]]  # group -> number and elements of each of its members
    workers: int
    told: List[int]  # those of the service keys whose arrays tell workers of a failure
    halves: List[int]  # slices and groups that travel in 16 bits, as changes

    def wrap(
        self, optimizer: bytes, values: Optional[Mapping[int, "np.ndarray[Any, Any]"]] = None, meets: bool = False, adopts: bool = False
    ) -> SliceOptimizer:
        """The optimizer that the servers need, around a pickled one: it knows the slices, and that later keys are numbered after them.
        ``values`` are those of the members of each group, where the servers do not have them. ``meets``: the workers are meeting.
        ``adopts``: a server that has an optimizer keeps that, and the pickled one does not count."""
        texts = {group: (array.dtype.name, array.tobytes().hex()) for group, array in (values or {}).items()}
        return SliceOptimizer(pickle.loads(optimizer), *self, texts, meets, adopts)

    def shifts(self, optimizer: Any) -> bool:
        """Whether it matters to an optimizer that later keys are numbered after ours."""
        return self.strings and may_know_numbers(optimizer, self.first)


class Group(NamedTuple):
    """Small gradients that share a message. Its array has the elements of the members one after the other, and then a word for each."""

    key: Key  # on the servers
    members: Tuple[Key, ...]  # most urgent first


class Hints(NamedTuple):
    """What a worker knows of its dense keys beside their shapes, in the order of the keys. Rank 0's are those of all."""

    places: Sequence[int] = ()  # in the forward order; empty if that is not known: as the keys
    frozen: Sequence[int] = ()  # the indices of those that get no gradient, as running statistics

    def forward_order(self, keys: int) -> Sequence[int]:
        """The place of each of so many ``keys`` in the forward order."""
        return self.places or range(keys)


NO_HINTS = Hints()


@dataclass(frozen=True)
class Layout:
    """The same on every worker. It never changes: new orders make a new one (:meth:`ordered`). By default every gradient is whole."""

    keys: KeyBook  # also has the keys that come later
    scheduled: bool = True
    wrapping: Optional[Wrapping] = None  # of optimizers, if they are wrapped
    unit: int = 0  # bytes; 0: all gradients whole
    message: float = 0.0  # seconds that a message takes as rank 0 measured it while all workers sent, 0 if nothing was
    slices: Dict[Key, List[Slice]] = field(default_factory=dict)  # of the keys that are cut, or whole on a server that was chosen
    slice_keys: Dict[Key, List[Key]] = field(default_factory=dict)
    group_of: Dict[Key, Group] = field(default_factory=dict)  # of the keys that share a message
    halves: FrozenSet[Key] = frozenset()  # the keys that travel in 16 bits; each is in slices or in a group
    told_keys: List[Key] = field(default_factory=list)  # whose arrays on the servers tell of a failure, one on each server
    order_key: Optional[Key] = None  # for messages with new orders, if the workers exchange any
    known: Dict[Key, None] = field(default_factory=dict)  # the keys that are in it, in the order of init
    sums: bool = False  # the workers have set no optimizer so far, as far as they know
    places: Dict[Tuple[Key, int], Tuple[int, int]] = field(default_factory=dict)  # urgency and position of each unit, if agreed on

    def ordered(self, orders: Orders) -> "Layout":
        """The same, but with these orders of its units."""
        return replace(self, places=dict(zip(self.units(), zip(orders.urgencies, orders.positions))))

    def units(self) -> List[Tuple[Key, int]]:
        """Each unit as a key and the number of the part, in the order of init. A group has the key of its most urgent member."""
        return [(key, part) for key in self.known if self.leader(key) == key for part in range(len(self.keys_of(key)))]

    def leader(self, key: Key) -> Key:
        """The most urgent member of the group that a key is in; the key itself if it is in none."""
        return self.group_of[key].members[0] if key in self.group_of else key

    def keys_of(self, key: Key) -> List[Key]:
        """The keys of a parameter's units."""
        if key in self.group_of:
            return [self.group_of[key].key]
        return self.slice_keys.get(key, [key])

    def is_late(self, key: Key) -> bool:
        """Whether the key came after the workers had agreed."""
        return bool(self.known) and key not in self.known

    def order_of(self, key: Key, part: int) -> Tuple[int, int]:
        """Urgency and position of a unit: as agreed, or else both by the order of init on rank 0. Keys that are not in the layout, as they
        came late or from before the store was wrapped, follow all others; their urgencies are this worker's own."""
        key = self.leader(key)
        agreed = self.places.get((key, part))
        if agreed is not None:
            return agreed
        place = len(self.places) + self.keys.gradients[key] * MAX_PARTS + part
        return place, place if key in self.known else late_position(key)

    def sizes(self) -> List[Tuple[Tuple[int, ...], int]]:
        """Gradients and bytes of each unit."""
        gradients, shapes = self.keys.gradients, self.keys.shapes
        found = []
        for key, _ in self.units():
            members = self.group_of[key].members if key in self.group_of else (key,)
            size = sum(wire_bytes(shapes[member], member in self.halves) for member in members) // len(self.keys_of(key))
            found.append((tuple(gradients[member] for member in members), size))
        return found


def halves_of(keys: KeyBook, hints: Hints) -> FrozenSet[Key]:
    """The keys that travel in 16 bits, where gradients do. Those that get no gradient do not travel, and MXNet spreads an array that is
    not cut over all servers."""
    frozen = frozenset(hints.frozen)
    cuts = most_elements(keys.servers, keys.bigarray) * 2 >= MIN_UNIT  # as cut() does
    return frozenset(
        key
        for index, (key, shape) in enumerate(keys.shapes.items())
        if may_travel(shape) and index not in frozen and (cuts or not keys.spread(shape.elements))
    )


def alone_of(keys: KeyBook, slices: Dict[Key, List[Slice]], grouped: Sequence[Tuple[Key, ...]], halves: FrozenSet[Key]) -> List[Key]:
    """The keys that travel in 16 bits as they are, neither cut nor in a group: they need another key as well."""
    members = {key for group in grouped for key in group}
    return [key for key in keys.shapes if key in halves and key not in slices and key not in members]


def slices_of(keys: KeyBook, unit: int, halves: Container[Key] = ()) -> Tuple[Dict[Key, List[Slice]], str]:
    """Returns the slices of each key that is cut into units of about ``unit`` bytes, and the only slice of each that stays whole, on a
    server that is chosen. ``halves`` are the keys that travel in 16 bits. If MXNet cannot place so many keys, there are none, and the text
    says why; else it is ''."""
    found = {}
    most = most_elements(keys.servers, keys.bigarray)
    for key, shape in keys.shapes.items():
        size = wire_bytes(shape, key in halves)
        parts = cut(shape.elements, size // max(1, shape.elements), unit, most)
        if has_chosen_key(size, len(parts), unit, keys.servers, keys.spread(shape.elements)):
            found[key] = parts
    count = sum(map(len, found.values()))
    if keys.servers > 1 and keys.texts and keys.count + count >= SURE:
        return {}, f"units of {unit} bytes would make {count} slices, but MXNet can place only {SURE} keys on several servers"
    return found, ""


def groups_of(keys: KeyBook, slices: Dict[Key, List[Slice]], unit: int, hints: Hints, halves: Container[Key] = ()) -> List[Tuple[Key, ...]]:
    """The keys of the small gradients that are to share a message, most urgent first. ``halves`` are the keys that travel in 16 bits."""
    names = list(keys.shapes)
    shapes = list(keys.shapes.values())
    types = ["halved" if name in halves else np.dtype(shape.dtype).name for name, shape in keys.shapes.items()]
    alone = [name in slices or kind not in GROUPED or keys.spread(shape.elements) for name, shape, kind in zip(names, shapes, types)]
    kinds = [None if own else kind for own, kind in zip(alone, types)]
    frozen = frozenset(hints.frozen)  # they do not travel
    sizes = [0 if index in frozen else wire_bytes(shapes[index], kind == "halved") for index, kind in enumerate(types)]
    found = groups(sizes, kinds, hints.forward_order(len(names)), unit, most_elements(keys.servers, keys.bigarray))
    if keys.servers > 1 and keys.texts and keys.count + sum(map(len, slices.values())) + len(found) >= SURE:
        return []  # MXNet could not place their keys
    return [tuple(names[member] for member in group) for group in found]
