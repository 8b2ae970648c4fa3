"""The layout as all workers have fixed it: which gradients are cut, what the slices are called, and where each unit has its place in the
orders. Pure bookkeeping; the agreement itself is in negotiation.py."""

from hashlib import blake2b
from typing import Dict, List, Optional, Tuple

from ..planning.orders import Orders
from ..planning.partition import MAX_PARTS, Slice
from .keys import Key, KeyBook

LATE = 1 << 60  # where the positions of keys begin that are not in the layout


def late_position(key: Key) -> int:
    """The place in the total order of a key that is not in the layout: from the key alone, as workers may use such keys in any order.

    >>> late_position(3) < late_position(4)
    True
    """
    if isinstance(key, int):
        return LATE + key
    return LATE + int.from_bytes(blake2b(key.encode(errors="surrogatepass"), digest_size=7).digest(), "big")


class FixedLayout:
    """Empty until it is fixed, once, at the first push; the same on every worker from then on.

    Attributes
    ----------
    slices : of the keys that are cut.
    """

    def __init__(self, keys: KeyBook) -> None:
        self._keys = keys
        self.slices: Dict[Key, List[Slice]] = {}
        self._slice_keys: Dict[Key, List[Key]] = {}
        self._units: List[Tuple[Key, int]] = []  # (key, part) in the order of init
        self._places: Dict[Tuple[Key, int], Tuple[int, int]] = {}  # rank and position, if they were agreed on
        self._known: Dict[Key, None] = {}

    def fix(self, slices: Dict[Key, List[Slice]], slice_keys: Dict[Key, List[Key]]) -> None:
        """All keys that were initialised by now are in it."""
        self.slices, self._slice_keys = slices, slice_keys
        self._known = dict.fromkeys(self._keys.shapes)
        self._units = [(key, part) for key in self._known for part in range(len(self.keys_of(key)))]

    def use(self, agreed: Optional[Orders]) -> None:
        """Take the orders that the workers agreed on, if they did."""
        if agreed is not None:
            self._places = dict(zip(self._units, zip(agreed.ranks, agreed.positions)))

    def keys_of(self, key: Key) -> List[Key]:
        """The keys of a parameter's units."""
        return self._slice_keys.get(key, [key])

    def is_late(self, key: Key) -> bool:
        """Whether the key came after the layout was fixed."""
        return bool(self._known) and key not in self._known

    def order_of(self, key: Key, part: int) -> Tuple[int, int]:
        """Rank and position of a unit: as agreed, or else both by the order of init on rank 0. Keys that are not in the layout, as they
        came late or from before the store was wrapped, follow all others; their ranks are this worker's own."""
        agreed = self._places.get((key, part))
        if agreed is not None:
            return agreed
        place = len(self._places) + self._keys.gradients[key] * MAX_PARTS + part
        return place, place if key in self._known else late_position(key)

    def sizes(self) -> List[Tuple[int, int]]:
        """Gradient and bytes of each unit."""
        return [(self._keys.gradients[key], self._keys.shapes[key].bytes // len(self.keys_of(key))) for key, _ in self._units]
