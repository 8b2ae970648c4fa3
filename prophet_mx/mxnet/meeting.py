"""The first words that workers exchange, when nothing is known to be the same on all of them: rank 0's text, which all hear, and a worker's
objection, which all hear in the end.

Only MXNet's keys carry numbers between workers, so a worker has to know the number of a key that rank 0 makes for it. Int keys are fixed
(:data:`~prophet_mx.mxnet.keys.MEETING_INTS`). A text key gets the next number of the worker that makes it, and workers that have made more
keys, or fewer, would mean different keys by one name. So rank 0 makes a row of *pilots*, each of which holds its place in the row, and
every worker pulls the one in the middle of its own row. The place that it finds tells how many more keys it has made than rank 0.

Each call that makes keys waits for the other workers, at a barrier that MXNet does not name. A worker that has made fewer calls is ahead:
its barrier here may be the one at which rank 0 still makes a key of the caller. A server ends if a key is pulled that is not there yet, so
some barriers follow before the first pull. As many follow after rank 0's text was heard, so that a worker which is behind
hears it, too.
"""

import zlib
from typing import TYPE_CHECKING, List, Optional, Tuple

import mxnet as mx
import numpy as np

from ..planning.placement import REACH, ROW
from .keys import MEETING_INTS, Key, KeyBook
from .raw_store import RawStore

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float32]

FENCES = 16  # calls that make keys by which a worker may be ahead of rank 0, or behind, and still be told what is wrong
OVER_ANY_THRESHOLD = 1e30  # a number that compression to 2 bits makes its threshold, whatever that is


class Meeting:
    """One worker's part.

    Parameters
    ----------
    raw : the wrapped store's own operations.
    compressed : whether MXNet compresses gradients.

    Attributes
    ----------
    key : of rank 0's text, from :meth:`hear` on; it has ``elements`` elements, which are not all equal at first.
    first : number of the first key that was made here, if keys are texts.
    """

    def __init__(self, raw: RawStore, keys: KeyBook, compressed: bool) -> None:
        self._raw = raw
        self._keys = keys
        self._compressed = compressed

    def hear(self, mine: str) -> Tuple[str, int]:
        """Rank 0's text, and how many more text keys this worker has made than rank 0: if any, or if it has made fewer, it cannot take part
        in what follows. ``mine`` counts on rank 0 alone. Blocks until every worker is here."""
        words = zlib.compress(mine.encode())
        size = max(len(words), 1 + self._raw.num_workers)  # of the objections, the last element is never one
        numbers = np.zeros(size, np.float32)
        numbers[: len(words)] = list(words)
        row, middle, place_of_words = self._row()
        self.first = self._keys.count
        values = [mx.nd.array([place, size, self.first], dtype=np.float32) for place in range(len(row))]
        values[place_of_words] = mx.nd.array(numbers)
        self._raw.init(row, values)  # initial values: no optimizer sees them
        self.fence()
        pilot = mx.nd.zeros((3,))
        self._raw.pull(row[middle], pilot)
        place, self.elements, self.first = (int(number) for number in pilot.asnumpy())
        more = place - middle
        said = mx.nd.zeros((self.elements,))
        self._raw.pull(row[place_of_words - more], said)
        self._keys.aligned(self.first)
        for key in row:
            self._keys.made(key)
        self.key = row[place_of_words]
        text = zlib.decompressobj().decompress(said.asnumpy().astype(np.uint8).tobytes())  # zeros may follow
        return text.decode(), more

    def fence(self) -> None:
        """A worker that takes part in what follows calls this as well, after :meth:`hear`. Blocks until every worker is here."""
        for _ in range(FENCES):
            self._raw.barrier()

    def _row(self) -> Tuple[List[Key], int, int]:
        """The keys that this worker makes; the place of the pilot that it pulls first, and that of rank 0's text. Every worker whose row is
        shifted by less than REACH has both in its row."""
        if not self._keys.texts:
            return list(MEETING_INTS), 0, 1
        return [f"prophet_mx:first{place}" for place in range(ROW)], REACH, 3 * REACH

    def objections(self, mine: str) -> Optional[Tuple[int, str]]:
        """The first worker that objects, and why; None if none does. ``mine`` is '' if this one does not. Blocks until every worker is
        here. What is pushed to our keys must be stored as it is: the servers' optimizer, if there is one, knows the keys."""
        raised = np.zeros(self.elements, np.float32)
        if mine:
            raised[self._raw.rank] = -10 * OVER_ANY_THRESHOLD if self._compressed else 1
        heard = self._summed(self.key, raised)
        others = np.flatnonzero(heard != heard[-1])  # what was too large to be compressed before is still added to each element
        if not len(others):
            return None
        first = int(others[0])
        if self._compressed:
            return first, mine or "its own error says what"
        words = np.zeros(self.elements, np.float32)
        if mine and first == self._raw.rank:
            encoded = mine.encode(errors="replace")[: self.elements]
            words[: len(encoded)] = list(encoded)
        return first, self._summed(self.key, words).astype(np.uint8).tobytes().rstrip(b"\0").decode(errors="replace")

    def _summed(self, key: Key, numbers: "Numbers") -> "Numbers":
        """The sum over all workers, which compression makes rough."""
        array = mx.nd.array(numbers)
        self._raw.push(key, array)
        self._raw.pull(key, array)
        summed: Numbers = array.asnumpy()
        return summed

    def stored(self, key: Optional[Key] = None, elements: int = 0) -> bool:
        """Whether the servers take a key of ours for what it is: one of so many elements, or by default that of rank 0's text.

        All workers push the same number for each element: it is stored, unless a server has an optimizer that updates the key like a
        parameter. That is so if text keys were made before the store was wrapped, as the wrapper then counts wrongly, or if the optimizer
        was set before. Blocks until every worker is here.
        """
        numbers = np.full(elements or self.elements, OVER_ANY_THRESHOLD if self._compressed else 1, np.float32)
        sums = self._summed(self.key if key is None else key, numbers)
        return len(set(sums.tolist())) == 1  # at first, they were not equal
