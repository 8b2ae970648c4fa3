"""What workers exchange at the first push, when nothing is known to be the same on all of them. Rank 0 tells its settings and its keys,
which the others take. A worker that cannot train with these objects, and all hear it in the end. In between, all measure together.

Only MXNet's keys carry numbers between workers, so a worker has to know the number of a key that rank 0 makes for it. Int keys are fixed
(:data:`~prophet_mx.mxnet.keys.MEETING_INTS`). A text key gets the next number of the worker that makes it, and workers that have made more
keys, or fewer, would mean different keys by one name. So rank 0 makes a row of *pilots*, each of which holds its place in the row, and
every worker pulls the one in the middle of its own row. The place that it finds tells how many more keys it has made than rank 0.

Each call that makes keys waits for the other workers, at a barrier that MXNet does not name. A worker that has made fewer calls is ahead:
its barrier here may be the one at which rank 0 still makes a key of the caller. A server ends if a key is pulled that is not there yet, so
some barriers follow before the first pull. As many follow after rank 0's text was heard, so that a worker which is behind hears it, too.

All workers measure at the same time, because their gradients will also travel at the same time: they then share the servers' links and
processors as they will in training. The rate is measured by pulls of keys that have been made, which change nothing. What a message costs
is measured by pushes with values in return, of keys that nobody else uses: a pull alone takes a fifth of the time that a gradient's message
takes, which also is added up and, if the servers have an optimizer, handed to that (the testbed, two workers and one server on two cores:
47 us for a pull, 270 for both, 650 with SGD).
"""

import dataclasses
import json
import time
import zlib
from statistics import median
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

import mxnet as mx
import numpy as np

from ..config import Config
from ..errors import ConfigError, KVStoreError, ProphetError
from ..place import other_name, worker_name
from ..planning.placement import BIGARRAY_VARIABLE, REACH, ROW
from ..policies import OFF, settings
from ..runtime import __version__
from .api import PlainStore
from .keys import MEETING_INTS, Key, KeyBook, decoded_keys, encoded_keys, first_difference
from .layout import NO_HINTS, Hints

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float32]

FENCES = 16  # calls that make keys by which a worker may be ahead of rank 0, or behind, and still be told what is wrong
OVER_ANY_THRESHOLD = 1e30  # compression to 2 bits turns this number into its threshold, whatever that is

# The settings that are rank 0's for all workers: they control what the workers do together. All others are each worker's own: they change
# when its gradients leave, which cannot change a result or cause a deadlock (see the proof in _ext/), or what it shows and writes.
SHARED = ("policy", "unit", "groups", "bandwidth", "message_cost", "warmup", "compress")

RATE_BYTES = 16_000_000  # pulled at most by each worker to measure the rate
RATE_SECONDS = 0.25  # after which no more is asked for
RATE_KEY = 100_000  # bytes of the smallest key that is pulled for it
RATE_FIRST = 1_000_000  # bytes that are asked for at first
PROBE_ELEMENTS = 16  # float32 that a message carries when its cost is measured
ROUNDS = 4  # of such messages; the first one makes the store's buffers and does not count


class Meeting:
    """One worker's part in rank 0's text, and in the objections to it.

    Parameters
    ----------
    plain : the wrapped store without scheduling.
    compressed : whether MXNet compresses gradients.

    Attributes
    ----------
    objection : why this worker cannot train with rank 0; all workers hear it from :meth:`settle`.
    key : of rank 0's text, from :meth:`settings` on; it has ``elements`` elements, which are not all equal at first.
    first : number of the first key that was made here, if keys are texts.
    """

    objection: Optional[ProphetError] = None

    def __init__(self, plain: PlainStore, keys: KeyBook, compressed: bool) -> None:
        self._plain, self._me = plain, worker_name(plain.rank)
        self._keys = keys
        self._compressed = compressed

    def settings(self, config: Config, schedules: bool, has_optimizer: bool, wraps: bool, hints: Hints) -> Tuple[Dict[str, Any], Config]:
        """Take rank 0's settings and keys. Returns its message, and ``config`` with the settings that are rank 0's for all. Blocks until
        every worker is here. KVStoreError on this worker alone: it cannot even take the steps that follow.

        What this worker would tell as rank 0: whether it ``schedules``, whether it has set an optimizer, and whether it ``wraps`` that
        although it schedules nothing.
        """
        keys = self._keys
        mine = {
            "version": __version__,
            "scheduled": schedules,
            "has_optimizer": has_optimizer,
            "wraps": wraps,
            "complete": keys.complete,
            "compressed": self._compressed,
            "settings": encoded_settings(config),
            "keys": encoded_keys(keys) if schedules else [],
            "calls": keys.calls,
            "bound": keys.bigarray,
            "hints": hints if schedules else NO_HINTS,
        }
        said, more = self._hear(json.dumps(mine) if self._plain.rank == 0 else "")
        told = json.loads(said)
        if told["scheduled"]:
            self._check_alike(told)
        keys.complete = told["complete"]  # a worker whose first push is of another key may have found otherwise
        config, self.objection = adopted(config, told["settings"])
        if told["scheduled"]:
            self._adopt_bound(told["bound"])
            self._adopt_keys(told["keys"], told["calls"], more)
            self._fence()
        return told, config

    def _check_alike(self, told: Dict[str, Any]) -> None:
        """The version decides which steps follow, compression how numbers are sent: both must be rank 0's."""
        if told["version"] != __version__:
            raise KVStoreError(
                f"{self._me} has prophet_mx {__version__}, rank 0 has {told['version']}: install the same version everywhere"
            )
        if told["compressed"] != self._compressed:
            here, there = ("on", "off") if self._compressed else ("off", "on")
            raise KVStoreError(f"gradient compression is {here} on {self._me} and {there} on rank 0: set the same on all workers")

    def _adopt_bound(self, bound: int) -> None:
        """Take rank 0's number of elements from which on MXNet spreads an array, by which gradients are cut. This worker's MXNet has its
        own, so that it cannot train with another."""
        own, self._keys.bigarray = self._keys.bigarray, bound
        if own != bound and self._keys.servers > 1:
            self.objection = self.objection or KVStoreError(
                f"{BIGARRAY_VARIABLE} is {own} on {self._me} and {bound} on rank 0: set the same on all workers"
            )

    def _adopt_keys(self, entries: List[List[Any]], calls: int, more: int) -> None:
        """Take rank 0's keys, which it has made in so many ``calls``."""
        theirs = decoded_keys(entries)
        # Keys that rank 0 has not seen made are sent whole, whatever a worker knows of them.
        if more or self._keys.complete and any(shape for _, shape in theirs):
            alike = calls == self._keys.calls
            difference = first_difference(self._keys, theirs, more, alike)
            if difference:
                error = KVStoreError(
                    f"{self._me} has initialised other keys than rank 0: {difference}. All workers have to initialise the "
                    f"same keys, with the same shapes and types{', in the same order' if self._keys.texts else ''}, after the store was "
                    "wrapped"
                )
                if more or not alike:
                    raise error  # here: it is ahead or behind, and numbers keys in its own way, so it cannot tell the others
                self.objection = self.objection or error
        self._keys.adopt(theirs)

    def _hear(self, mine: str) -> Tuple[str, int]:
        """Returns rank 0's text, and how many more text keys this worker has made than rank 0. Unless that is 0, this worker cannot take
        part in what follows. ``mine`` counts on rank 0 alone. Blocks until every worker is here."""
        words = zlib.compress(mine.encode())
        size = max(len(words), 1 + self._plain.num_workers)  # of the objections, the last element is never one
        numbers = np.zeros(size, np.float32)
        numbers[: len(words)] = list(words)
        row, middle, place_of_words = self._row()
        self.first = self._keys.count
        values = [mx.nd.array([place, size, self.first], dtype=np.float32) for place in range(len(row))]
        values[place_of_words] = mx.nd.array(numbers)
        self._plain.init(row, values)  # initial values: no optimizer sees them
        self._fence()
        pilot = mx.nd.zeros((3,))
        self._plain.pull(row[middle], pilot)
        place, self.elements, self.first = (int(number) for number in pilot.asnumpy())
        more = place - middle
        said = mx.nd.zeros((self.elements,))
        self._plain.pull(row[place_of_words - more], said)
        self._keys.aligned(self.first)
        for key in row:
            self._keys.made(key)
        self.key = row[place_of_words]
        text = zlib.decompressobj().decompress(said.asnumpy().astype(np.uint8).tobytes())  # zeros may follow
        return text.decode(), more

    def _fence(self) -> None:
        """A worker that takes part in what follows calls this as well, after :meth:`_hear`. Blocks until every worker is here."""
        for _ in range(FENCES):
            self._plain._barrier()

    def _row(self) -> Tuple[List[Key], int, int]:
        """The keys that this worker makes; the place of the pilot that it pulls first, and that of rank 0's text. Every worker whose row is
        shifted by less than REACH has both in its row."""
        if not self._keys.texts:
            return list(MEETING_INTS), 0, 1
        return [f"prophet_mx:first{place}" for place in range(ROW)], REACH, 3 * REACH

    def settle(self, numbered: bool) -> None:
        """If a worker objects, raise why on all workers. It is raised on that worker alone where there is no way to tell the others: nobody
        knows the numbers of our keys (they are not ``numbered``), or rank 0 has seen none of the caller's made. Blocks until every worker
        is here."""
        can_hear = numbered and self._keys.shapes
        heard = self._objections(str(self.objection or "")) if can_hear else None
        if self.objection is not None:
            raise self.objection
        if heard is not None:
            raise KVStoreError(f"told by {other_name(heard[0], self._plain.rank)}: {heard[1]}")

    def _objections(self, mine: str) -> Optional[Tuple[int, str]]:
        """The first worker that objects, and why; None if none does. ``mine`` is '' if this one does not. Blocks until every worker is
        here. What is pushed to our keys must be stored as it is: the servers' optimizer, if there is one, knows the keys."""
        others = np.flatnonzero(self.raised(self.key, np.arange(self.elements - 1) == (self._plain.rank if mine else -1), self.elements))
        if not len(others):
            return None
        first = int(others[0])
        if self._compressed:
            return first, mine or "its own error says what"
        words = np.zeros(self.elements, np.float32)
        if mine and first == self._plain.rank:
            encoded = mine.encode(errors="replace")[: self.elements]
            words[: len(encoded)] = list(encoded)
        return first, self._summed(self.key, words).astype(np.uint8).tobytes().rstrip(b"\0").decode(errors="replace")

    def raised(self, key: Key, mine: "NDArray[np.bool_]", elements: int) -> "NDArray[np.bool_]":
        """Which of the flags of a key of ours any worker raises, if the servers store what is pushed to it. It has so many ``elements``:
        one for each flag, and at least one more. Blocks until every worker is here."""
        numbers = np.zeros(elements, np.float32)
        numbers[: len(mine)] = np.where(mine, -10 * OVER_ANY_THRESHOLD if self._compressed else 1, 0)
        heard = self._summed(key, numbers)
        flags: NDArray[np.bool_] = heard[: len(mine)] != heard[-1]  # compression adds what it has left of an earlier number to each element
        return flags

    def added_up(self, key: Key, mine: "NDArray[np.float64]") -> "NDArray[np.float64]":
        """The sum over all workers of a key of ours with an element more; of what is compressed, 1 for what is not 0. Blocks until every
        worker is here."""
        if self._compressed:
            return self.raised(key, mine != 0, mine.size + 1).astype(float)
        return self._summed(key, np.append(mine, 0).astype(np.float32))[:-1].astype(float)

    def object(self, error: ProphetError) -> None:
        """This worker cannot train with rank 0, if it has not said so already."""
        self.objection = self.objection or error

    def _summed(self, key: Key, numbers: "Numbers") -> "Numbers":
        """The sum over all workers, which compression makes rough."""
        array = mx.nd.array(numbers)
        self._plain.push(key, array)
        self._plain.pull(key, array)
        summed: Numbers = array.asnumpy()
        return summed

    def stored(self, key: Optional[Key] = None, elements: int = 0) -> bool:
        """Whether the servers store what is pushed to a key of ours, with so many ``elements``. By default it is the key of rank 0's text.

        All workers push the same number for each element: it is stored, unless a server has an optimizer that updates the key like a
        parameter. That is so if text keys were made before the store was wrapped, as the wrapper then counts wrongly, or if the optimizer
        was set before. Blocks until every worker is here.
        """
        numbers = np.full(elements or self.elements, OVER_ANY_THRESHOLD if self._compressed else 1, np.float32)
        sums = self._summed(self.key if key is None else key, numbers)
        return len(set(sums.tolist())) == 1  # at first, they were not equal


def encoded_settings(config: Config) -> Dict[str, Any]:
    """The shared settings by name, as types that JSON has."""
    return {name: getattr(config, name) for name in SHARED}


def adopted(config: Config, shared: Dict[str, Any]) -> Tuple[Config, Optional[ConfigError]]:
    """``config`` with the shared settings that :func:`encoded_settings` encoded on rank 0, and what is wrong with them.

    Each process has a policy table of its own, as a program can add rows. A worker whose table lacks rank 0's policy cannot train. Until it
    has told the others, it keeps a policy that it has.
    """
    error = None
    policy, known = shared["policy"], settings()
    if policy not in known:
        error = ConfigError(
            f"policy={policy!r}, which rank 0 uses, is not known to this worker; it knows: {', '.join(known)}. Add the policy on all "
            "workers before they make their stores"
        )
        policy = config.policy if config.policy != OFF else Config.policy
    return dataclasses.replace(config, **{**shared, "policy": policy}), error


def differences(own: Config, shared: Config) -> str:
    """A worker's own settings that differ from the shared ones, with both values; '' if none does. Under the policy ``off`` no other
    setting counts."""
    counting = SHARED[:1] if shared.policy == OFF else SHARED
    pairs = [(name, getattr(own, name), getattr(shared, name)) for name in counting]
    return "; ".join(f"{name}={_shown(name, other)}, not {_shown(name, mine)}" for name, mine, other in pairs if mine != other)


def _shown(name: str, value: Any) -> str:
    return ("off" if name == "compress" else "auto") if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def message_seconds(plain: PlainStore, keys: List[Key]) -> float:
    """Seconds that a message takes this worker while all workers send as many as they can to all servers. ``keys`` are the probes.

    All workers send the same number of messages, as each is answered only when all have sent it. Blocks until every worker is here.
    """
    sent = [mx.nd.zeros((PROBE_ELEMENTS,)) for _ in keys]
    received = [mx.nd.zeros((PROBE_ELEMENTS,)) for _ in keys]
    rounds: List[float] = []
    plain._barrier()
    for _ in range(ROUNDS):
        started = time.monotonic()
        plain.pushpull(keys, sent, received)
        _wait(received)
        rounds.append(time.monotonic() - started)
    return median(rounds[1:]) / len(keys)


def rate(plain: PlainStore, keys: KeyBook, pulls: bool) -> float:
    """This worker's bytes/s from each server while all workers pull at once; 0 if there is too little to pull. Takes up to 0.5 s. Blocks
    until every worker is here.

    That moment's shares of a link are uneven. Rank 0, whose rate decides, therefore also pulls alone: what it gets then, shared evenly by
    machines of equal links, is the least that counts. A worker that does not pull, as it may not have the keys, only waits with the others.
    """
    plain._barrier()
    alone = _rate(plain, keys) if plain.rank == 0 else 0.0
    plain._barrier()
    if not pulls:
        return 0.0
    return max(_rate(plain, keys) / keys.servers, alone / max(keys.servers, int(plain.num_workers)))


def _rate(plain: PlainStore, keys: KeyBook) -> float:
    """Bytes/s from all servers together; 0 if there is too little to pull. Several keys at a time, each time about twice as much, so
    that all connections are busy and round trips hardly count; the time with the most bytes is the one that counts."""
    begin = time.monotonic()
    left = sorted((key for key, shape in keys.shapes.items() if shape.bytes >= RATE_KEY), key=lambda key: keys.shapes[key].bytes)
    pulled = most = 0
    found, least = 0.0, RATE_FIRST
    while left and pulled < RATE_BYTES and time.monotonic() - begin < RATE_SECONDS:
        chosen: List[Key] = []
        size = 0
        while left and size < least:
            chosen.append(left.pop())
            size += keys.shapes[chosen[-1]].bytes
        arrays = [mx.nd.empty(keys.shapes[key].shape, dtype=keys.shapes[key].dtype) for key in chosen]
        started = time.monotonic()
        plain.pull(chosen, arrays)
        _wait(arrays)
        if size >= most:
            most, found = size, size / (time.monotonic() - started)
        pulled += size
        least *= 2
    return found if pulled > RATE_FIRST else 0.0


def _wait(arrays: List[mx.nd.NDArray]) -> None:
    for array in arrays:
        array.wait_to_read()
