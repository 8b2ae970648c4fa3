"""The parameters on the scheduled path: their buffers, the arrays of their units, and these units in the scheduler."""

import ctypes
import logging
from dataclasses import dataclass
from itertools import count
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

import mxnet as mx
import numpy as np
from mxnet.base import NDArrayHandle, check_call
from mxnet.kvstore import KVStore

from .. import _core
from ..planning.units import Slice, together
from ..sizes import COPY_BYTES
from .halving import largest, wire_bytes
from .keys import Key, KeyBook, Shape, shape_of
from .layout import Group, Layout

logger = logging.getLogger("prophet_mx")

Chunk = Tuple[mx.nd.NDArray, int, int, int]  # some neighbouring units: their array, how many, the first element and the end
Arrays = Tuple[mx.nd.NDArray, List[mx.nd.NDArray]]  # a parameter's buffer, and its units in the same memory


class HalfArrays(NamedTuple):
    """The arrays of a unit that travels in 16 bits; see half.pyx."""

    wire: mx.nd.NDArray
    values: mx.nd.NDArray  # in 32 bits, without a group's words
    buffer: mx.nd.NDArray  # of the whole parameter


class GroupArrays(NamedTuple):
    """A group's arrays; see group.pyx."""

    wire: mx.nd.NDArray
    gradients: mx.nd.NDArray
    values: mx.nd.NDArray
    members: List[Tuple[mx.nd.NDArray, mx.nd.NDArray]]  # of each member the gradient and the value: parts of the two


WHOLE = -1  # the place of all chunks together


@dataclass(eq=False)
class Parameter:
    """A gradient on the scheduled path, and its buffer."""

    native: "_core.Parameter"
    units: List[int]  # their indices in the scheduler
    buffer: mx.nd.NDArray
    keys: List[Key]  # of its units
    arrays: List[mx.nd.NDArray]  # of its units: the buffer itself, or aliases of its slices
    chunks: List[Chunk]  # in which it is copied, if there are several
    gradient: int
    iteration: int = -1  # the caller's, in which it was last pushed


class Parameters:
    """The parameters that were pushed, by key.

    Parameters
    ----------
    kind : the type of the wrapped store.
    workers : how many there are.

    Attributes
    ----------
    layout : the layout by which units are made from now on.
    get : a parameter by its key; None if there is none yet.
    names, sizes : by gradient, in words and in bytes, for profiles. The words are the keys. The bytes are those of 32 bits also where
        gradients travel in 16.
    known : the names of parameters by their keys, as far as an optimizer has told them.
    titles : by gradient, what a trace calls it: its parameter's name if that is known.
    unit_gradients : the gradient of each of the scheduler's units; of a group that of its most urgent member.
    unit_names : each of these units in words.
    compression : factor by which MXNet's compression makes gradients smaller.
    """

    def __init__(self, driver: "_core.Driver", keys: KeyBook, layout: Layout, kind: str, workers: int) -> None:
        self._driver = driver
        self._workers = workers
        self._keys = keys
        self.layout = layout
        self._device = "device" in kind
        self._by_key: Dict[Key, Parameter] = {}
        self.get: Callable[[Key], Optional[Parameter]] = self._by_key.get
        self.names: Dict[int, str] = {}
        self.known: Mapping[Key, str] = {}
        self.titles: Dict[int, str] = {}
        self.sizes: Dict[int, int] = {}
        self.unit_gradients: List[int] = []
        self.unit_names: List[str] = []
        self.compression = 1
        self._home = mx.cpu()  # the context of buffers that are made before a push
        self._made: Dict[Key, Arrays] = {}  # buffers that rank 0 made before their keys' first push, and all if they travel in 16 bits
        self._wires: Dict[Key, List[mx.nd.NDArray]] = {}  # of parameters that travel in 16 bits: of each unit what is sent
        self._made_groups: Dict[Tuple[Key, ...], GroupArrays] = {}  # of groups, with initial values; by the members
        self._groups: Dict[Key, Tuple[_core.Group, int, GroupArrays]] = {}  # by their own keys: with the unit
        self._passed: Set[Key] = set()  # keys whose values are not scheduled (sparse, empty)
        self._reducers: List[KVStore] = []  # the first sums over several devices, with MXNet's own code
        self._reduced: Dict[Tuple[int, int, int], int] = {}  # the reducer's key for a chunk of a gradient, or the whole, and so many arrays
        self._reducer_keys = count()

    def forget(self) -> None:
        """There are no parameters any more: the store that sends them is gone."""
        self._by_key.clear()

    def takes(self, key: Key, sample: mx.nd.NDArray) -> bool:
        """Whether a key's values can be scheduled; the log says once if not."""
        if key in self._passed:
            return False
        if sample.stype == "default" and sample.size:
            return True
        self._passed.add(key)
        logger.warning("key %r is not scheduled: its values are %s", key, "empty" if sample.stype == "default" else sample.stype)
        return False

    def add(self, key: Key, sample: mx.nd.NDArray, store: mx.base.KVStoreHandle) -> Parameter:
        """Put a key that is pushed for the first time on the path; ``store`` is the handle of the store that sends it."""
        gradient = self._keys.gradient(key)
        if key in self.layout.group_of:
            return self._add_member(key, gradient, sample, store)
        parts = self.layout.slices.get(key, ())
        made, arrays = self._made.pop(key, (None, []))
        buffer = made
        if buffer is None or (buffer.dtype, buffer.context) != (sample.dtype, _host(sample)):
            buffer, arrays = new_arrays(sample.shape, sample.dtype, _host(sample), parts)
            if made is not None and key in self.layout.halves:
                made.copyto(buffer).wait_to_read()
        wires = self._wires.get(key, arrays)
        # Chunks only where gradients are plain: others have to be copied as a whole.
        chunks = new_chunks(buffer, arrays, parts, COPY_BYTES) if parts and _core.plain(sample.handle.value) else []
        keys = self.layout.keys_of(key)
        if self.layout.is_late(key):
            logger.info("key %r came after the layout was fixed: it is sent whole, after all others in the total order", key)
        units = [
            self._new_unit(name, wire, gradient, *self.layout.order_of(key, part)) for part, (name, wire) in enumerate(zip(keys, wires))
        ]
        self._note(gradient, key, buffer)
        self.unit_gradients += [gradient] * len(units)
        self.unit_names += [str(key)] * len(units)
        native = _core.Parameter(
            self._driver,
            store.value,
            buffer.handle.value,
            [(unit, array.handle.value, name) for unit, array, name in zip(units, arrays, keys)],
            [(array.handle.value, *where) for array, *where in chunks],
            halves=self._halves(wires, arrays) if key in self.layout.halves else (),
        )
        self._by_key[key] = Parameter(native, units, buffer, keys, arrays, chunks, gradient)
        return self._by_key[key]

    def _note(self, gradient: int, key: Key, buffer: mx.nd.NDArray) -> None:
        self.names[gradient] = str(key)
        self.titles[gradient] = self.known.get(key, str(key))
        self.sizes[gradient] = shape_of(buffer).bytes // self.compression

    def _halves(self, wires: Sequence[mx.nd.NDArray], arrays: Sequence[mx.nd.NDArray]) -> List["_core.Half"]:
        """The native sides of units that travel in 16 bits, from what is in their arrays now."""
        changes, limit = self._answers()
        return [
            _core.Half(self._driver, wire.handle.value, array.handle.value, shape_of(array).elements, changes, limit)
            for wire, array in zip(wires, arrays)
        ]

    def _answers(self) -> Tuple[bool, float]:
        """Whether the answers of what travels in 16 bits are changes, and the largest number that is sent."""
        return not self.layout.sums, largest(self.layout.sums, self._workers)

    def _add_member(self, key: Key, gradient: int, sample: mx.nd.NDArray, store: mx.base.KVStoreHandle) -> Parameter:
        """Put a member of a group on the path, and its group if it is the first."""
        group = self.layout.group_of[key]
        if group.key not in self._groups:
            self._groups[group.key] = self._new_group(group, sample, store)
        native, unit, arrays = self._groups[group.key]
        index = group.members.index(key)
        buffer, value = arrays.members[index]
        self._note(gradient, key, buffer)
        member = _core.Parameter(
            self._driver, store.value, buffer.handle.value, [(unit, buffer.handle.value, group.key)], (), native, index, value.handle.value
        )
        self._by_key[key] = Parameter(member, [unit], buffer, [group.key], [buffer], [], gradient)
        return self._by_key[key]

    def _new_group(self, group: Group, sample: mx.nd.NDArray, store: mx.base.KVStoreHandle) -> Tuple["_core.Group", int, GroupArrays]:
        made = arrays = self._made_groups.pop(group.members)
        halved = group.members[0] in self.layout.halves
        if arrays.wire.context != _host(sample):
            arrays = self._group_arrays(group.members, _host(sample), halved)
            made.values.copyto(arrays.values).wait_to_read()
        gradients = [self._keys.gradient(member) for member in group.members]
        unit = self._driver.add_unit(
            wire_bytes(shape_of(arrays.gradients), halved),  # without the words
            self._keys.server_of(group.key, shape_of(arrays.wire).elements),
            gradients[0],
            *self.layout.order_of(group.members[0], 0),
        )
        self.unit_gradients.append(gradients[0])
        self.unit_names.append(f"{group.members[0]} and {len(group.members) - 1} more in its message")
        kind = np.dtype(arrays.wire.dtype)
        native = _core.Group(
            self._driver,
            store.value,
            unit,
            group.key,
            arrays.wire.handle.value,
            arrays.gradients.handle.value,
            arrays.values.handle.value,
            list(zip(gradients, (wire_bytes(shape_of(gradient), halved) for gradient, _ in arrays.members))),
            np.ones(1, kind).tobytes(),
            np.full(1, self._workers, kind).tobytes(),
            self._answers() if halved else None,
        )
        return native, unit, arrays

    def make_group(self, members: Sequence[Key], halved: bool = False) -> GroupArrays:
        """The arrays of a group before its first push. Whoever asks for them puts its initial values into them."""
        self._made_groups[tuple(members)] = arrays = self._group_arrays(members, self._home, halved)
        return arrays

    def group_values(self) -> Dict[Key, "np.ndarray[Any, Any]"]:
        """By the key of each group, the newest values of its members that are here, one after the other. Waits for none under way."""
        groups = set(self.layout.group_of.values())
        made = {group.key: self._made_groups[group.members] for group in groups if group.members in self._made_groups}
        made.update((key, arrays) for key, (_, _, arrays) in self._groups.items())
        return {key: arrays.values.asnumpy() for key, arrays in made.items()}

    def _group_arrays(self, members: Sequence[Key], context: mx.Context, halved: bool = False) -> GroupArrays:
        shapes = [self._keys.shapes[member] for member in members]
        ends = np.cumsum([shape.elements for shape in shapes]).tolist()
        dtype = shapes[0].dtype
        wire = mx.nd.empty((ends[-1] + len(shapes),), ctx=context, dtype=np.float16 if halved else dtype)
        gradients, values = (mx.nd.empty((ends[-1],), ctx=context, dtype=dtype) for _ in range(2))

        def member(flat: mx.nd.NDArray, end: int, shape: Shape) -> mx.nd.NDArray:
            return alias(flat[end - shape.elements : end].reshape(shape.shape))

        parts = [(member(gradients, end, shape), member(values, end, shape)) for end, shape in zip(ends, shapes)]
        return GroupArrays(wire, gradients, values, parts)

    def _new_unit(self, key: Key, array: mx.nd.NDArray, gradient: int, urgency: int, position: int) -> int:
        shape = shape_of(array)
        return self._driver.add_unit(
            shape.bytes // self.compression, self._keys.server_of(key, shape.elements), gradient, urgency, position
        )

    def pack(self, parameter: Parameter, sources: List[mx.nd.NDArray], priority: int) -> None:
        """Bring the sum over the devices into the buffer, added up as the wrapped store would."""
        if len(sources) == 1:
            parameter.native.pack(sources[0].handle.value, priority)
            return
        if parameter.chunks and all(_core.plain(source.handle.value) for source in sources):
            parts = zip(*(flat_parts(source, parameter.chunks) for source in sources))
            for place, (chunk, same_parts) in enumerate(zip(parameter.chunks, parts)):
                self._reduce(parameter.gradient, place, list(same_parts), chunk[0], priority)
            return
        parameter.native.fence()
        self._reduce(parameter.gradient, WHOLE, sources, parameter.buffer, priority)
        parameter.native.fence()

    def _reduce(self, gradient: int, place: int, sources: List[mx.nd.NDArray], total: mx.nd.NDArray, priority: int) -> None:
        """Bring the sum of some arrays, the same part of a gradient from each device, into one of ours.

        A signal handler may come in between anywhere, and do the same. MXNet makes room for a key's arrays at its first sum, and would
        write past it if more came later: so their number is part of the key.
        """
        if not self._reducers:
            self._reducers.append(mx.kv.create("device" if self._device else "local"))
        reducer = self._reducers[0]
        key = self._reduced.get((gradient, place, len(sources)))
        if key is None:
            key = next(self._reducer_keys)
            reducer.init(key, total)
            self._reduced[gradient, place, len(sources)] = key
        reducer.push(key, sources, priority)
        reducer.pull(key, total, priority)

    def gradients_are_like(self, sample: mx.nd.NDArray) -> None:
        """Expect gradients on the same device as this one."""
        self._home = _host(sample)

    def make(self, key: Key, parts: Sequence[Slice]) -> Arrays:
        """The buffer of a parameter before its first push."""
        shape = self._keys.shapes[key]
        self._made[key] = new_arrays(shape.shape, shape.dtype, self._home, parts)
        return self._made[key]

    def make_halves(self, key: Key, parts: Sequence[Slice]) -> List[HalfArrays]:
        """The arrays of the units of a parameter that travels in 16 bits, before its first push. Whoever asks for them puts the parameter's
        initial value into its buffer, if answers are to be changes of that."""
        buffer, arrays = self.make(key, parts)
        self._wires[key] = [mx.nd.zeros((shape_of(array).elements,), ctx=self._home, dtype=np.float16) for array in arrays]
        return [HalfArrays(wire, array, buffer) for wire, array in zip(self._wires[key], arrays)]

    def pushed_in(self, iteration: int) -> Set[str]:
        """The names of those that were last pushed in this iteration."""
        return {self.names[parameter.gradient] for parameter in self._by_key.values() if parameter.iteration == iteration}

    def places(self) -> List[Tuple[int, int, int]]:
        """Each unit with its urgency and position in the orders of the layout."""
        return [
            (unit, *self.layout.order_of(key, part)) for key, parameter in self._by_key.items() for part, unit in enumerate(parameter.units)
        ]


def _host(sample: mx.nd.NDArray) -> mx.Context:
    """Where the buffer for an array is: in host memory, for a GPU in pinned memory, to which it copies fast."""
    return mx.cpu() if sample.context.device_type.startswith("cpu") else mx.cpu_pinned(0)


def alias(array: mx.nd.NDArray) -> mx.nd.NDArray:
    """An array over the same memory, with an engine variable of its own: ops on it do not wait for ops on the original.

    Through DLPack's C functions: the Python ones would wait for the original's pending ops.
    """
    managed, handle = ctypes.c_void_p(), NDArrayHandle()
    check_call(mx.base._LIB.MXNDArrayToDLPack(array.handle, ctypes.byref(managed)))
    check_call(mx.base._LIB.MXNDArrayFromDLPackEx(managed, ctypes.c_bool(False), ctypes.byref(handle)))
    return mx.nd.NDArray(handle)


def new_arrays(shape: Tuple[int, ...], dtype: type, context: mx.Context, parts: Sequence[Slice]) -> Arrays:
    """A parameter's buffer, and arrays of its units: of ``parts``, or the buffer itself if it is whole."""
    buffer = mx.nd.empty(shape, ctx=context, dtype=dtype)
    if len(parts) < 2:
        return buffer, [buffer]
    flat = buffer.reshape((-1,))
    return buffer, [alias(flat[part.start : part.stop]) for part in parts]


def new_chunks(buffer: mx.nd.NDArray, units: Sequence[mx.nd.NDArray], parts: Sequence[Slice], least: int) -> List[Chunk]:
    """The units of a buffer, in the order of ``parts``, in chunks of ``least`` bytes or more; none if one chunk would have them all."""
    counts = together([shape_of(unit).bytes for unit in units], least)
    if len(counts) < 2:
        return []
    flat = buffer.reshape((-1,))
    chunks: List[Chunk] = []
    first = 0
    for number in counts:
        start, stop = parts[first].start, parts[first + number - 1].stop
        chunks.append((units[first] if number == 1 else alias(flat[start:stop]), number, start, stop))
        first += number
    return chunks


def flat_parts(array: mx.nd.NDArray, chunks: Sequence[Chunk]) -> List[mx.nd.NDArray]:
    """The elements of each chunk, in the memory of an array that is known to be plain."""
    with mx.autograd.pause():
        flat = array.reshape((-1,))
        return [flat[start:stop] for _, _, start, stop in chunks]
