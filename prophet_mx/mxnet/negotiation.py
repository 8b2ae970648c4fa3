"""The first push to a synchronous store, at which all workers meet: they learn whether rank 0 schedules and how, share its settings and its
keys, agree on a layout, make the keys of slices and groups, and agree on the orders of the units.

At that moment the keys are known and no update has happened, so nothing can be lost: rank 0 decides, service keys that it initialises
carry its decisions to the others, and slices and groups are initialised from the servers' own values. An optimizer that is already on the
servers is sent again, inside the one that knows slices and groups (shared_optimizer.py).

Rank 0 sends its settings and its keys first (meeting.py). Until a worker has them, its own do not change what it does; afterwards all
workers follow rank 0's. So the later steps never depend on the state of one worker. A worker that cannot train with rank 0, because it has
other keys for example, still takes all of these steps. At their end it objects, and an error is raised on all workers.

If rank 0 has a profile from an earlier job, the workers also agree on the orders at this moment (see planning/orders.py). Later they cannot
meet like this: they may call the store in different orders, so one could wait for a message that another sends only after its own; see
order_exchange.py.
"""

import logging
import pickle
from typing import Callable, Dict, FrozenSet, Iterable, List, Optional, Protocol, Sequence, Tuple

import mxnet as mx
import numpy as np

from ..config import Config
from ..errors import KVStoreError, ProphetError
from ..place import worker_name
from ..planning.halves import halves_pay
from ..planning.orders import Orders
from ..planning.placement import SURE, probes
from ..planning.unit_sizes import below_a_unit, too_small, unit_bytes
from ..planning.units import Slice
from ..policies import POLICIES
from ..quantities import format_rate
from ..sizes import Traffic, message_bytes
from .api import NAIVE, PlainStore
from .failures import ELEMENTS, raise_if_failed
from .halving import other_type, wire_bytes
from .initial_values import InitialValues
from .keys import Key, KeyBook
from .layout import MOST_WORKERS, NO_HINTS, Group, Hints, Layout, Wrapping, alone_of, groups_of, halves_of, slices_of
from .meeting import PROBE_ELEMENTS, Meeting, differences, message_seconds, rate
from .optimizers import may_know_numbers
from .order_exchange import decoded_orders, encoded_orders
from .parameters import Parameters
from .shared_optimizer import SharedOptimizer

logger = logging.getLogger("prophet_mx")


class Side(Protocol):
    """What a worker itself contributes once it schedules; see :class:`~prophet_mx.mxnet.data_path.ScheduledPath`. No method may raise: the
    other workers are waiting."""

    profiled: bool  # it has a profile from an earlier job
    parameters: Parameters  # makes the arrays that slices and groups are initialised from

    def measured(self, rate: float, message: float, unit: int) -> None:
        """Take what rank 0 has measured, and the size of a unit that follows from it."""

    def orders(self, layout: Layout) -> Optional[Orders]:
        """The orders of the layout's units on rank 0, None if it has none; None on all others."""


def negotiate(
    plain: PlainStore,
    keys: KeyBook,
    config: Config,
    optimizer: Optional[bytes],
    compressed: bool,
    schedules: bool,
    join: Callable[[Config, bool], Side],
    hints: Hints = NO_HINTS,
) -> Layout:
    """All that workers do together at the first push, once. Blocks until all are here.

    Parameters
    ----------
    plain : the wrapped store without scheduling.
    keys, config : this worker's own. If rank 0 schedules, its keys are those of all workers from then on.
    optimizer : the one that this worker has set on the servers, pickled.
    compressed : whether MXNet compresses gradients.
    schedules : whether this worker would schedule by its own settings.
    join : called once if rank 0 schedules, with the settings that hold from then on, and whether this worker has the keys of the others.
        If it raises a ProphetError, this worker cannot schedule, and leaves.
    hints : of this worker; rank 0's are those of all.

    Raises
    ------
    ProphetError
        this worker cannot do what rank 0 decided, or the workers have agreed to send nothing.
    """
    steps = _Steps(plain, keys, compressed, optimizer)
    wraps = optimizer is not None and not schedules and keys.texts and may_know_numbers(pickle.loads(optimizer), keys.count)
    try:
        told, shared = steps.meeting.settings(config, schedules, optimizer is not None, bool(wraps), hints)
        wrapping = None if told["scheduled"] else steps.pass_through(told["has_optimizer"], told["wraps"])
        changed = differences(config, shared)
        if not told["scheduled"] and shared.policy != "off" and schedules:
            logger.warning("%s: gradient traffic is not scheduled: rank 0 has %s", worker_name(plain.rank), NAIVE)
        elif changed:
            logger.warning("%s: all workers use rank 0's settings: %s", worker_name(plain.rank), changed)
        if not told["scheduled"]:
            return Layout(keys, scheduled=False, wrapping=wrapping)
        side = join(shared, steps.meeting.objection is None)
    except ProphetError:
        plain.leave_alone()  # this process can end though the others wait
        raise
    return steps.layout(shared, side, Hints(*told["hints"]))


def text_may_come(plain: PlainStore, keys: KeyBook, compressed: bool, optimizer: Optional[bytes]) -> bool:
    """Whether a text key may be made although the keys of prophet_mx have shifted its number to one that nobody knows. ``optimizer`` is the
    one that this store has sent, pickled. Blocks until every worker is here, as making the key does.

    It may if rank 0's optimizer treats all keys alike. If rank 0 knows of no optimizer, it may if the servers have none.
    """
    steps = _Steps(plain, keys, compressed)
    alike = 0 if optimizer is None else -1 if may_know_numbers(pickle.loads(optimizer), 0) else 1
    key, told = steps.tell([alike, 2])  # two elements that are not equal
    return told[0] > 0 or told[0] == 0 and steps.meeting.stored(key, len(told))


class _Steps:
    """One worker's steps; all workers take the same ones."""

    def __init__(self, plain: PlainStore, keys: KeyBook, compressed: bool, optimizer: Optional[bytes] = None) -> None:
        self._plain = plain
        self._keys = keys
        self._compressed = compressed
        self.meeting = Meeting(plain, keys, compressed)
        self._optimizer = SharedOptimizer(plain, self.meeting, optimizer, keys.optimizer_set)
        self._service: List[Key] = []  # keys for messages between workers, beside the meeting's
        self._told: List[Key] = []  # those of them whose arrays tell of failures
        self._probes: List[Key] = []  # keys with which it is measured what a message costs

    def tell(self, mine: Sequence[float]) -> Tuple[Key, List[float]]:
        """Returns a new key, and rank 0's numbers, float32, of which it was made. Blocks until every worker is here."""
        key = self._keys.new_keys(1)[0]
        numbers = mx.nd.array(mine, dtype=np.float32)
        self._plain.broadcast(key, numbers, numbers)  # an initial value: no optimizer sees it
        self._keys.made(key)
        self._service.append(key)
        return key, numbers.asnumpy().tolist()

    # -- optimizers on the servers -------------------------------------------------------------------------------------------

    def pass_through(self, first_has: bool, wraps: bool) -> Optional[Wrapping]:
        """See :meth:`SharedOptimizer.pass_through`."""
        return self._optimizer.pass_through(self._wrapping({}), bool(self._keys.texts), first_has, wraps)

    def _wrapping(
        self, parameters: Dict[int, int], groups: Optional[Dict[int, Tuple[Tuple[int, int], ...]]] = None, halves: Iterable[Key] = ()
    ) -> Optional[Wrapping]:
        """How to wrap an optimizer, from the service keys so far, the parameter of each slice, the members of each group, and those of the
        keys of both that carry changes in 16 bits. None if nobody
        knows the numbers of our keys, as string keys were made before the store was wrapped: then there are no slices."""
        numbers = [self._keys.number(key) for key in (self.meeting.key, *self._service)]
        service = [number for number in numbers if number is not None]
        if len(service) < len(numbers):
            return None
        measuring = [number for number in map(self._keys.number, self._probes) if number is not None]
        last = self._keys.count - 1  # of text keys; of int keys the numbers do not count
        texts = bool(self._keys.texts)
        told, narrow = ([self._known_number(key) for key in some] for some in (self._told, halves))
        workers = self._plain.num_workers
        return Wrapping(parameters, service, measuring, self.meeting.first, last, texts, groups or {}, workers, told, narrow)

    def _prepare(self, wrapping: Optional[Wrapping]) -> None:
        """See to it that an optimizer on the servers knows our keys. Blocks until every worker is here. KVStoreError, on all workers
        alike, if it does not."""
        if wrapping is not None:
            self._optimizer.send(wrapping)
            if self._keys.shapes and not self.meeting.stored():  # where no key was seen made, nothing is pushed to ours
                raise KVStoreError("keys were initialised, or the optimizer was set, before the store was wrapped: wrap it first")

    # -- the layout ----------------------------------------------------------------------------------------------------------

    def layout(self, config: Config, side: Side, hints: Hints) -> Layout:
        """Agree on the layout, under rank 0's settings. Blocks until every worker is here. KVStoreError, on all workers alike, if the
        servers take our keys for parameters, or if a worker objects."""
        optimizer = self._optimizer
        flags = optimizer.flags()
        key, first = self.tell([*flags, *[0] * (len(flags) * (self._plain.num_workers - 1) + 1)])
        optimizer.agree(key, first[: len(flags)], self._wrapping({}) if self._keys.initialised else None)
        in_order, whole = optimizer.ordered, self._why_whole() or optimizer.why_whole
        # Rank 0's decisions; what the other ranks find here is not used.
        measured = config.bandwidth or rate(self._plain, self._keys, not self.meeting.objection)
        message = config.message_cost or (0.0 if whole or not self._room_for_probes() else self._message())
        why_full = self._why_full(config, whole, in_order, measured)
        halves = frozenset() if why_full or not config.compress else halves_of(self._keys, hints)
        travelling = [(key, shape) for index, (key, shape) in enumerate(self._keys.shapes.items()) if index not in hints.frozen]
        sizes = [wire_bytes(shape, key in halves) for key, shape in travelling]
        grouping = config.groups == "auto" and POLICIES[config.policy].groups and self._plain.num_workers <= MOST_WORKERS
        traffic = Traffic(sizes, measured, message, self._plain.num_workers, self._keys.servers, grouping)
        unit = unit_bytes(config.policy, traffic, config.unit)
        all_sparse = not self._keys.shapes and self._keys.complete and self._keys.initialised
        if unit and not in_order and not all_sparse:
            self._say_whole(self._why_whole())
            optimizer.say_whole(not self._why_whole())
        profiled = side.profiled and self._keys.complete and not self._compressed and not in_order
        _, told = self.tell([0 if whole else unit, measured, message, profiled, bool(halves) and bool(unit)])
        unit, measured, message = int(told[0]), told[1], told[2]
        halves = halves_of(self._keys, hints) if told[4] else frozenset()
        self._say_absurd(config, traffic, unit)
        side.measured(measured, message, unit)
        slices, grouped, obstacle = self._cut(unit, halves, grouping, hints)
        if halves and obstacle:
            why_full, halves = obstacle, frozenset()
            slices, grouped, obstacle = self._cut(unit, halves, grouping, hints)
        self._say_whole(obstacle)
        self._say_full(config, why_full or ("" if unit else f"the policy {config.policy} sends whole gradients"), halves)
        places = dict(zip(self._keys.shapes, hints.forward_order(len(self._keys.shapes))))
        costs = message_bytes(measured, message, self._keys.servers)
        slice_keys, groups, order_key, wrapping = self._make_units(slices, grouped, halves, places, costs, side)
        # What is compressed does not arrive as it was sent, nor does what an optimizer takes for a parameter.
        exchanges = not in_order and not self._compressed and self._keys.shapes and wrapping is not None
        layout = Layout(
            self._keys,
            scheduled=not in_order,
            wrapping=wrapping,
            unit=unit,
            message=message,
            slices=slices,
            slice_keys=slice_keys,
            group_of={member: group for group in groups for member in group.members},
            halves=halves,
            told_keys=self._told if wrapping is not None else [],
            order_key=order_key if exchanges else None,
            known=dict.fromkeys(self._keys.shapes),
            sums=not optimizer.is_set,
        )
        if told[3]:  # never so if in_order
            orders = self._agree_orders(side.orders(layout), order_key, len(layout.units()))
            layout = layout if orders is None else layout.ordered(orders)
        self.meeting.settle(wrapping is not None)
        return layout

    def _cut(
        self, unit: int, halves: FrozenSet[Key], grouping: bool, hints: Hints
    ) -> Tuple[Dict[Key, List[Slice]], List[Tuple[Key, ...]], str]:
        """The slices of each key that has keys of its own, and the members of each group. The text says why MXNet cannot place so many
        keys; '' if it can."""
        keys = self._keys
        slices, obstacle = slices_of(keys, unit, halves)
        grouped = groups_of(keys, slices, unit, hints, halves) if unit and grouping and not obstacle else []
        alone = alone_of(keys, slices, grouped, halves)
        count = keys.count + sum(map(len, slices.values())) + len(grouped) + len(alone)
        if alone and not obstacle and keys.servers > 1 and keys.texts and count >= SURE:
            obstacle = f"MXNet can place only {SURE} keys on several servers"
        slices.update((key, [Slice(0, 0, keys.shapes[key].elements)]) for key in alone)
        return slices, grouped, obstacle

    def _say_absurd(self, config: Config, traffic: Traffic, unit: int) -> None:
        """Warn of settings that are allowed, and surely not meant. Each worker has limits of its own."""
        said = [below_a_unit(name, getattr(config, name), unit) for name in ("window", "lead")]
        if unit and self._plain.rank == 0:
            said.append(too_small(config.policy, traffic, config.unit))
        for words in filter(None, said):
            logger.warning("%s. A plain number is bytes: write 256KB for kilobytes", words)

    def _why_full(self, config: Config, whole: str, in_order: bool, rate: float) -> str:
        """Why gradients have to travel in 32 bits; '' if they need not. Rank 0's counts."""
        if in_order:
            return "the optimizer depends on the order of updates"
        if config.compress is None or whole:
            return whole
        other = other_type(self._keys)
        if other:
            return f"{other}, and servers add up numbers of 16 bits in a mode in which they take all others for float32 too"
        if not halves_pay(rate, self._plain.num_workers):
            return f"at {format_rate(rate)} from each worker to each server, servers convert 16 bits no faster than the network carries 32"
        return ""

    def _say_full(self, config: Config, why: str, halves: FrozenSet[Key]) -> None:
        """Log what becomes of the setting ``compress``."""
        if config.compress is None or self._plain.rank != 0:
            return
        if not halves:
            logger.warning("compress=%s has no effect: %s", config.compress, why or "no gradient is a matrix of float32, or larger")
            return
        share = sum(self._keys.shapes[key].bytes for key in halves) / sum(shape.bytes for shape in self._keys.shapes.values())
        logger.info(
            "compress=%s: %.0f%% of the gradients' bytes travel in 16 bits. What these do not hold is carried on to the next iteration. "
            "The weights are close to those of plain dist_sync, not the same bit for bit",
            config.compress,
            100 * share,
        )

    def _say_whole(self, obstacle: str) -> None:
        if obstacle and self._plain.rank == 0:
            logger.warning("large gradients are not sliced: %s", obstacle)

    def _why_whole(self) -> str:
        """Why gradients must stay whole, whatever the optimizer is; '' if they need not. The same on all workers."""
        if self._compressed:
            return "gradient compression is on"
        return "" if self._keys.complete and self._keys.shapes else "keys were made before the store was wrapped"

    def _room_for_probes(self) -> bool:
        """Whether MXNet can surely place the probes."""
        return self._keys.servers == 1 or not self._keys.texts or self._keys.count + probes(self._keys.servers) < SURE

    def _message(self) -> float:
        """Seconds that a message takes, measured with keys that are made for it. Blocks until every worker is here."""
        self._probes = self._keys.new_keys(probes(self._keys.servers))
        self._plain.init(self._probes, [mx.nd.zeros((PROBE_ELEMENTS,)) for _ in self._probes])
        for key in self._probes:
            self._keys.made(key)
        self._prepare(self._wrapping({}))
        return message_seconds(self._plain, self._probes)

    def _make_units(
        self,
        slices: Dict[Key, List[Slice]],
        grouped: List[Tuple[Key, ...]],
        halves: FrozenSet[Key],
        places: Dict[Key, int],
        message: int,
        side: Side,
    ) -> Tuple[Dict[Key, List[Key]], List[Group], Key, Optional[Wrapping]]:
        """Make a key for each slice and each group, with the servers' values, and one for orders, and see to it that the optimizer knows
        them. Blocks until every worker is here. Returns these keys, and how optimizers are wrapped. ``places`` are the keys' in the forward
        order, and ``message`` is what each counts on its server besides its bytes.

        The store keeps what a key was initialised from until it is pushed: what will be pushed had best be the same array, so ``side``
        makes it on rank 0. KVStoreError, on all workers alike, if the servers take our keys for parameters.
        """
        shapes = self._keys.shapes
        widths = {key: wire_bytes(shapes[key], key in halves) // shapes[key].elements for key in slices}
        sizes = [(places[key], (part.stop - part.start) * widths[key]) for key, parts in slices.items() for part in parts]
        sizes += [(places[members[0]], sum(wire_bytes(shapes[member], member in halves) for member in members)) for members in grouped]
        urgent = sorted(range(len(sizes)), key=lambda unit: sizes[unit][0])
        in_groups = {member for members in grouped for member in members}
        whole = [key for key in shapes if key not in slices and key not in in_groups]
        names, made = self._keys.slice_keys([sizes[unit][1] for unit in urgent], whole, message)
        order_key = made[-1]
        supply = iter([name for _, name in sorted(zip(urgent, names))])
        slice_keys = {key: [next(supply) for _ in parts] for key, parts in slices.items()}
        groups = [Group(next(supply), members) for members in grouped]
        changes = self._optimizer.is_set
        initial = InitialValues(self._plain, side.parameters, self._keys.shapes, halves, changes, self.meeting.objection is None)
        for key, parts in slices.items():
            initial.of_slices(slice_keys[key], key, parts)
        for group in groups:
            initial.of_group(group)
        values = initial.arrays
        units = sum(len(slices.get(key, (key,))) for key in shapes) - len(in_groups) + len(groups)
        values[order_key] = mx.nd.zeros((2 * units + 1,))
        spare = mx.nd.zeros((1,))
        self._plain.init(made, [values.get(name, spare) for name in made])  # at once: each call waits for all workers
        for name in made:
            self._keys.made(name)
        self._service.append(order_key)
        self._make_told()
        wrapping = self._wrapping(*self._numbers(slice_keys, groups), initial.halved if changes else ())
        self._prepare(wrapping)
        if changes:
            initial.send_masters()
        if wrapping is not None and self._optimizer.is_set and self._keys.initialised:
            self._look_for_failures()
        return slice_keys, groups, order_key, wrapping

    def _make_told(self) -> None:
        """Make the keys whose arrays tell of failures. Blocks until every worker is here."""
        told = self._keys.key_on_each_server()
        if told:
            self._plain.init(told, [mx.nd.zeros((ELEMENTS,)) for _ in told])
        for key in told:
            self._keys.made(key)
        self._told = told
        self._service += told

    def _look_for_failures(self) -> None:
        """KVStoreError, on all workers alike, if the optimizer on a server has failed. From now on its servers have the arrays at hand.
        Blocks until every worker is here."""
        arrays = [mx.nd.zeros((ELEMENTS,)) for _ in self._told]
        if arrays:
            self._plain.push(self._told, arrays)
        raise_if_failed(self._plain, self._told)

    def _numbers(
        self, slice_keys: Dict[Key, List[Key]], groups: Sequence[Group]
    ) -> Tuple[Dict[int, int], Dict[int, Tuple[Tuple[int, int], ...]]]:
        """The number of the parameter for each slice's, and the numbers and elements of its members for each group's. If numbers are not
        known, nothing is cut or shares a message."""
        known, shapes = self._known_number, self._keys.shapes
        slices = {known(name): known(key) for key, names in slice_keys.items() for name in names}
        members = {known(group.key): tuple((known(key), shapes[key].elements) for key in group.members) for group in groups}
        return slices, members

    def _known_number(self, key: Key) -> int:
        number = self._keys.number(key)
        assert number is not None, key
        return number

    def _agree_orders(self, mine: Optional[Orders], key: Key, units: int) -> Optional[Orders]:
        """Rank 0's orders of the layout's units; None if rank 0 has none, as all other workers do. Blocks until every worker is here."""
        array = mx.nd.array(encoded_orders(mine, units))
        self._plain.pushpull(key, array, array)
        return decoded_orders(array.asnumpy())
