"""What all workers do together, once: share rank 0's settings, agree on a layout, make the keys of the slices, and agree on the orders of
the units.

It is done when the first gradient is pushed. At that moment the keys are known and no update has happened, so nothing can be lost: rank 0
decides, service keys that it initialises carry its decisions to the others, and the slices are initialised from the servers' own
values. An optimizer that is already on the servers is sent again, inside the one that knows the slices.

Rank 0 sends its settings and its keys first (meeting.py). Until a worker has them, its own settings and keys do not change what it does;
afterwards all workers follow rank 0's. So the steps that follow never depend on the state of one worker. A worker that cannot follow, as
its keys are others, still takes all of these steps. At their end it objects, and an error is raised on all workers.

If rank 0 has a profile from an earlier job, the workers also agree on the orders at this moment (see planning/orders.py). Later they cannot
meet like this: they may call the store in different orders, so one could wait for a message that another sends only after its own; see
order_exchange.py.
"""

import json
import logging
import pickle
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from ..config import Config
from ..errors import KVStoreError, ProphetError
from ..planning.orders import Orders
from ..planning.partition import Slice, cut, unit_bytes
from ..planning.placement import SURE, most_elements, probes
from ..runtime import __version__
from ..sizes import Traffic
from .arrays import Arrays
from .keys import Key, KeyBook
from .measurement import PROBE_ELEMENTS, message_seconds, rate
from .meeting import Meeting
from .order_exchange import decoded, encoded
from .raw_store import RawStore
from .shared_keys import decoded as decoded_keys
from .shared_keys import encoded as encoded_keys
from .shared_keys import first_difference
from .shared_settings import adopted
from .shared_settings import encoded as encoded_settings
from .slice_optimizer import SliceOptimizer, may_know_numbers, order_matters, slicing_allowed

logger = logging.getLogger("prophet_mx")


class Agreement(NamedTuple):
    """The same on every worker."""

    unit: int  # bytes; 0: all gradients whole
    in_order: bool  # nothing is scheduled: the optimizer depends on the order in which keys are updated
    rate: float  # bytes/s per server connection as rank 0 measured it, 0 if nothing was
    message: float  # seconds that a message takes as rank 0 measured it while all workers sent, 0 if nothing was
    profiled: bool  # rank 0 has a profile that gives the orders of the units


class Wrapping(NamedTuple):
    """How optimizers are wrapped for the servers: what :class:`SliceOptimizer` has to know of the layout. Keys are as the servers number
    them."""

    parameters: Dict[int, int]  # of each slice
    service: List[int]  # keys that are not parameters
    probes: List[int]  # nor these
    first: int  # of our own keys
    last: int
    strings: bool  # whether the caller's keys are strings

    def wrap(self, optimizer: bytes) -> SliceOptimizer:
        """The optimizer that the servers need, around a pickled one: it knows the slices, and that later keys are numbered after them."""
        return SliceOptimizer(pickle.loads(optimizer), *self)

    def shifts(self, optimizer: Any) -> bool:
        """Whether it matters to an optimizer that later keys are numbered after ours."""
        return self.strings and may_know_numbers(optimizer, self.first)


class Agreeing:
    """Carries out the agreement with the operations of an unscheduled store.

    Parameters
    ----------
    raw : the wrapped store's own operations.
    compressed : whether MXNet compresses gradients.

    Attributes
    ----------
    objection : why this worker cannot train with rank 0; None if it can.
    """

    def __init__(self, raw: RawStore, keys: KeyBook, compressed: bool) -> None:
        self._raw = raw
        self._keys = keys
        self._compressed = compressed
        self._service: List[Key] = []  # our own keys that are not of slices
        self._probes: List[Key] = []  # nor these, with which it is measured what a message costs
        self._meeting = Meeting(raw, keys, compressed)
        self._wraps = False  # whether rank 0's optimizer is wrapped although nothing is scheduled
        self.objection: Optional[ProphetError] = None

    def settings(self, config: Config, scheduling: bool, optimizer: Optional[bytes]) -> Tuple[bool, Config]:
        """Whether rank 0 schedules, and ``config`` with the settings that are rank 0's for all. Blocks until every worker is here.

        ``scheduling`` says whether this worker would schedule by itself, ``optimizer`` is the one that is on the servers, pickled. If
        rank 0 schedules, its keys are those of all workers from now on.

        Raises
        ------
        KVStoreError
            on this worker alone: it cannot even take the steps that follow.
        """
        keys = self._keys
        wraps = optimizer is not None and not scheduling and keys.texts and may_know_numbers(pickle.loads(optimizer), keys.count)
        mine = {
            "version": __version__,
            "scheduled": scheduling,
            "wraps": bool(wraps),
            "complete": keys.complete,
            "compressed": self._compressed,
            "settings": encoded_settings(config),
            "keys": encoded_keys(keys) if scheduling else [],
            "calls": keys.calls,
        }
        said, more = self._meeting.hear(json.dumps(mine) if self._raw.rank == 0 else "")
        told = json.loads(said)
        self._service.append(self._meeting.key)
        if told["scheduled"]:
            self._check_alike(told)
        self._wraps = told["wraps"]
        keys.complete = told["complete"]  # a worker whose first push is of another key may have found otherwise
        config, self.objection = adopted(config, told["settings"])
        if told["scheduled"]:
            self._adopt_keys(told["keys"], told["calls"], more)
            self._meeting.fence()
        return told["scheduled"], config

    def _check_alike(self, told: Dict[str, Any]) -> None:
        """What decides which steps follow, and how numbers are sent, is the same here as on rank 0."""
        if told["version"] != __version__:
            raise KVStoreError(
                f"worker {self._raw.rank} has prophet_mx {__version__}, rank 0 has {told['version']}: install the same version everywhere"
            )
        if told["compressed"] != self._compressed:
            here, there = ("on", "off") if self._compressed else ("off", "on")
            raise KVStoreError(
                f"gradient compression is {here} on worker {self._raw.rank} and {there} on rank 0: set the same on all workers"
            )

    def _adopt_keys(self, entries: List[List[Any]], calls: int, more: int) -> None:
        """Rank 0's keys, which it has made in so many ``calls``."""
        theirs = decoded_keys(entries)
        # Keys that rank 0 has not seen made are sent whole, whatever a worker knows of them.
        if more or self._keys.complete and any(shape for _, shape in theirs):
            alike = calls == self._keys.calls
            difference = first_difference(self._keys, theirs, more, alike)
            if difference:
                error = KVStoreError(
                    f"worker {self._raw.rank} has initialised other keys than rank 0: {difference}. All workers have to initialise the "
                    f"same keys, with the same shapes and types{', in the same order' if self._keys.texts else ''}, after the store was "
                    "wrapped"
                )
                if more or not alike:
                    raise error  # it is ahead, or behind, and numbers keys in its own way: the others cannot be told
                self.objection = self.objection or error
        self._keys.adopt(theirs)

    def _tell(self, mine: Sequence[float]) -> List[float]:
        """Rank 0's numbers, as float32. Blocks until every worker is here."""
        key = self._keys.new_keys(1)[0]
        numbers = mx.nd.array(mine, dtype=np.float32)
        self._raw.broadcast(key, numbers, numbers)  # an initial value: no optimizer sees it
        self._keys.made(key)
        self._service.append(key)
        told: List[float] = numbers.asnumpy().tolist()
        return told

    def pass_through(self, optimizer: Optional[bytes]) -> Optional[Wrapping]:
        """Nothing is scheduled. The key through which the workers have learned that shifts the numbers of later ones: an optimizer on the
        servers to which this matters is sent again, wrapped. None if nobody knows those numbers. Blocks until every worker is here."""
        wrapping = self._wrapping({})
        if wrapping is None or not self._wraps:
            return wrapping
        self._send(wrapping.wrap(optimizer) if optimizer is not None else None)
        if self._meeting.stored():
            return wrapping
        self._send(pickle.loads(optimizer) if optimizer is not None else None)
        return None

    def text_may_come(self, optimizer: Optional[bytes]) -> bool:
        """Whether a text key may be made although ours have shifted its number, nobody knows to which. It may where rank 0's optimizer
        treats all keys alike. If rank 0 knows of none, it may where the servers have none. Blocks until every worker is here."""
        alike = 0 if optimizer is None else -1 if may_know_numbers(pickle.loads(optimizer), 0) else 1
        told = self._tell([alike, 2])  # two elements that are not equal
        return told[0] > 0 or told[0] == 0 and self._meeting.stored(self._service[-1], len(told))

    def _send(self, optimizer: Optional[mx.optimizer.Optimizer]) -> None:
        """Rank 0 sends its optimizer to the servers, if it has one. Blocks until every worker is here: a script may have set the optimizer
        on rank 0 alone."""
        if optimizer is not None and self._raw.rank == 0:
            self._raw.set_optimizer(optimizer)
        self._raw.barrier()

    def _wrapping(self, parameters: Dict[int, int]) -> Optional[Wrapping]:
        """For the service keys there are, and slices of ``parameters``; None if nobody knows their numbers, as string keys were made
        before the store was wrapped. There are no slices then."""
        numbers = [self._keys.number(key) for key in self._service]
        service = [number for number in numbers if number is not None]
        if len(service) < len(numbers):
            return None
        measuring = [number for number in map(self._keys.number, self._probes) if number is not None]
        last = self._keys.count - 1  # of text keys; of int keys the numbers do not count
        return Wrapping(parameters, service, measuring, self._meeting.first, last, bool(self._keys.texts))

    def agree(self, config: Config, optimizer: Optional[bytes], profiled: bool) -> Agreement:
        """``config`` is as :meth:`settings` gave it; ``profiled`` says that this worker has a profile from an earlier job. Blocks until
        every worker is here. KVStoreError, on all workers alike, if the servers take our keys for parameters."""
        # Rank 0's decisions; what the other ranks find here is not used.
        ordered, obstacle = self._obstacle(optimizer)
        in_order, measures = self._tell([ordered, not obstacle and self._room_for_probes()])
        measured_rate = config.bandwidth or rate(self._raw, self._keys, not self.objection)
        message = config.message_cost or (self._message(optimizer) if measures else 0.0)
        sizes = [shape.bytes for shape in self._keys.shapes.values()]
        traffic = Traffic(sizes, measured_rate, message, self._raw.num_workers, self._keys.servers)
        unit = unit_bytes(config.policy, traffic, config.unit)
        if unit and obstacle and not ordered and self._raw.rank == 0:
            logger.warning("large gradients are not sliced: %s", obstacle)
        orders = profiled and self._keys.complete and not self._compressed and not in_order
        told = self._tell([0 if obstacle else unit, measured_rate, message, orders])
        return Agreement(int(told[0]), bool(in_order), told[1], told[2], bool(told[3]))

    def _obstacle(self, pickled: Optional[bytes]) -> Tuple[bool, str]:
        """Whether the optimizer on the servers depends on the order in which keys are updated, and why gradients must stay whole, ''
        if they need not."""
        optimizer = None if pickled is None else pickle.loads(pickled)
        name = type(optimizer).__name__
        if optimizer is not None and order_matters(optimizer):
            if self._raw.rank == 0:
                logger.warning(
                    "gradient traffic is not scheduled: the result of %s depends on the order in which parameters are "
                    "updated, so that order is kept",
                    name,
                )
            return True, f"the result of {name} depends on the order of updates"
        if self._compressed:
            return False, "gradient compression is on"
        if not (self._keys.complete and self._keys.shapes):
            return False, "keys were made before the store was wrapped"
        return False, "" if optimizer is None or slicing_allowed(optimizer) else f"{name} is not known to be exact on slices"

    def _room_for_probes(self) -> bool:
        """Whether MXNet can surely place the probes."""
        return self._keys.servers == 1 or not self._keys.texts or self._keys.count + probes(self._keys.servers) < SURE

    def _message(self, optimizer: Optional[bytes]) -> float:
        """Seconds that a message takes, measured with keys that are made for it. Blocks until every worker is here."""
        self._probes = self._keys.new_keys(probes(self._keys.servers))
        self._raw.init(self._probes, [mx.nd.zeros((PROBE_ELEMENTS,)) for _ in self._probes])
        for key in self._probes:
            self._keys.made(key)
        self._prepare(self._wrapping({}), optimizer)
        return message_seconds(self._raw, self._probes)

    def _prepare(self, wrapping: Optional[Wrapping], optimizer: Optional[bytes]) -> None:
        """See to it that an optimizer on the servers knows our keys. Blocks until every worker is here. KVStoreError, on all workers
        alike, if it does not."""
        if wrapping is not None:
            self._send(wrapping.wrap(optimizer) if optimizer is not None else None)
            if self._keys.shapes and not self._meeting.stored():  # without keys that were made in time, nothing will be pushed to ours
                raise KVStoreError("keys were initialised, or the optimizer was set, before the store was wrapped: wrap it first")

    def slices(self, unit: int) -> Dict[Key, List[Slice]]:
        """The keys that are sliced, and how."""
        found = {}
        most = most_elements(self._keys.servers, self._keys.bigarray)
        for key, shape in self._keys.shapes.items():
            parts = cut(shape.elements, shape.bytes // max(1, shape.elements), unit, most)
            if len(parts) > 1:
                found[key] = parts
        count = sum(map(len, found.values()))
        if self._keys.servers > 1 and self._keys.texts and self._keys.count + count >= SURE:
            if self._raw.rank == 0:
                logger.warning(
                    "large gradients are not sliced: units of %d bytes would make %d slices, but MXNet can place only %d keys on "
                    "several servers",
                    unit,
                    count,
                    SURE,
                )
            return {}
        return found

    def make_slices(
        self, slices: Dict[Key, List[Slice]], optimizer: Optional[bytes], arrays: Callable[[Key], Arrays]
    ) -> Dict[Key, List[Key]]:
        """Make a key for each slice, with the servers' value, and see to it that the optimizer knows them. Blocks until all are here.

        ``arrays`` makes those of a key; it is called on rank 0 alone. The store keeps what a slice was initialised from until the
        slice is pushed: what will be pushed had best be the same array. KVStoreError, on all workers alike, if the servers take our keys
        for parameters.
        """
        widths = {key: self._keys.shapes[key].bytes // self._keys.shapes[key].elements for key in slices}
        names, made = self._keys.slice_keys(
            [(part.stop - part.start) * widths[key] for key, parts in slices.items() for part in parts],
            [key for key in self._keys.shapes if key not in slices],
        )
        order_key = self.order_key = made[-1]
        supply = iter(names)
        keys = {key: [next(supply) for _ in parts] for key, parts in slices.items()}
        values: Dict[Key, mx.nd.NDArray] = {}
        for key, parts in slices.items():
            if self._raw.rank == 0:
                value, own = arrays(key)
                self._raw.pull(key, value)
                value.wait_to_read()  # the slices have engine variables of their own
            else:  # the store takes rank 0's values; these never get memory
                shape = self._keys.shapes[key]
                own = [mx.nd.empty((part.stop - part.start,), dtype=shape.dtype) for part in parts]
            values.update(zip(keys[key], own))
        self.units = sum(len(keys.get(key, (key,))) for key in self._keys.shapes)
        values[order_key] = mx.nd.zeros((2 * self.units + 1,))
        spare = mx.nd.zeros((1,))
        self._raw.init(made, [values.get(name, spare) for name in made])  # at once: each call waits for all workers
        for name in made:
            self._keys.made(name)
        self._service.append(order_key)
        number = self._keys.number
        numbers = ((number(name), number(key)) for key, names in keys.items() for name in names)
        self.wrapping = self._wrapping({part: whole for part, whole in numbers if part is not None and whole is not None})
        self._prepare(self.wrapping, optimizer)
        return keys

    def agree_orders(self, mine: Optional[Orders]) -> Optional[Orders]:
        """Rank 0's orders of the layout's units, which are in the order of their keys' init and of their slices; None if rank 0 has
        none, as all other workers do. Blocks until every worker is here."""
        array = mx.nd.array(encoded(mine, self.units))
        self._raw.pushpull(self.order_key, array, array)
        return decoded(array.asnumpy())

    def settle(self) -> None:
        """If a worker objects, raise why on all workers; on that one alone if it is not known how to tell the others: nobody has seen rank
        0's keys made. Blocks until every worker is here."""
        can_hear = self.wrapping is not None and self._keys.shapes
        heard = self._meeting.objections(str(self.objection or "")) if can_hear else None
        if self.objection is not None:
            raise self.objection
        if heard is not None:
            raise KVStoreError(f"told by worker {heard[0]}: {heard[1]}")
