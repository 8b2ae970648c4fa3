"""What the keys of slices and groups hold on the servers at first: what the servers have for the caller's keys, which are pulled for it. A
step of the first push (negotiation.py)."""

from typing import Container, Dict, List, Mapping, Sequence

import mxnet as mx
import numpy as np

from ..planning.units import Slice
from .api import PlainStore
from .halving import SUM_IN_32_BITS, pieces
from .keys import Key, Shape
from .layout import Group
from .parameters import HalfArrays, Parameters
from .server_masters import PIECES

MOST_BYTES = 50_000_000  # of pieces that are on their way at the same time, about


class InitialValues:
    """One worker's part in it.

    The store keeps what a key is initialised from until it is pushed: what will be pushed had best be the same array, so ``parameters``
    makes it.

    Parameters
    ----------
    shapes : of the caller's dense keys.
    halves : those of them that travel in 16 bits.
    changes : whether the servers answer these with changes, for which they need the weights in 32 bits, and the workers too.
    agrees : whether this worker has the keys of the others; if not, it asks for none.

    Attributes
    ----------
    arrays : what to initialise the keys of slices and groups from; it counts on rank 0 alone.
    halved : by the keys of slices and groups that travel in 16 bits.
    """

    def __init__(
        self, plain: PlainStore, parameters: Parameters, shapes: Mapping[Key, Shape], halves: Container[Key], changes: bool, agrees: bool
    ) -> None:
        self._plain, self._parameters, self._shapes, self._halves = plain, parameters, shapes, halves
        self._first = plain.rank == 0
        self._pulls = agrees and changes
        self._agrees = agrees
        self.arrays: Dict[Key, mx.nd.NDArray] = {}
        self.halved: Dict[Key, HalfArrays] = {}

    def of_slices(self, names: Sequence[Key], key: Key, parts: Sequence[Slice]) -> None:
        """The slices of a key are called ``names``."""
        if key not in self._halves:
            self.arrays.update(zip(names, self._slices(key, parts)))
            return
        halved = self._parameters.make_halves(key, parts)
        if self._pulls:
            self._plain.pull(key, halved[0].buffer)
            halved[0].buffer.wait_to_read()  # the slices have engine variables of their own
        self._halve(dict(zip(names, halved)))

    def _slices(self, key: Key, parts: Sequence[Slice]) -> List[mx.nd.NDArray]:
        if not self._first:  # the store takes rank 0's values; these never get memory
            return [mx.nd.empty((part.stop - part.start,), dtype=self._shapes[key].dtype) for part in parts]
        value, own = self._parameters.make(key, parts)
        self._plain.pull(key, value)
        value.wait_to_read()
        return own

    def of_group(self, group: Group) -> None:
        """Every worker keeps the initial values of the members: see :meth:`Parameters.group_values`."""
        halved = group.members[0] in self._halves
        shapes = [self._shapes[member] for member in group.members]
        if not self._agrees and not halved:  # it sends nothing
            self.arrays[group.key] = mx.nd.empty((sum(shape.elements for shape in shapes) + len(shapes),), dtype=shapes[0].dtype)
            return
        made = self._parameters.make_group(group.members, halved)
        start = 0
        for member, (_, value), shape in zip(group.members, made.members, shapes):
            if self._agrees:
                self._plain.pull(member, value)
                value.wait_to_read()
            if not halved:
                made.wire[start : start + shape.elements] = value.reshape((-1,))
            start += shape.elements
        made.wire.wait_to_read()
        if halved:
            self._halve({group.key: HalfArrays(made.wire, made.values, made.values)})
        else:
            self.arrays[group.key] = made.wire

    def _halve(self, halved: Dict[Key, HalfArrays]) -> None:
        """Let the servers add up these keys in 32 bits, from before they are made."""
        if not self.halved and self._first:
            self._plain._send_command_to_servers(SUM_IN_32_BITS, "")
        self.halved.update(halved)
        for name, arrays in halved.items():
            arrays.wire[:] = 0
            self.arrays[name] = arrays.wire

    def send_masters(self) -> None:
        """Give the servers the weights of what travels in 16 bits in 32 bits, which rank 0 has, as integers that 16 bits hold. The others
        send zeros. Blocks until every worker is here."""
        under_way: List[mx.nd.NDArray] = []
        size = 0
        for name, arrays in self.halved.items():
            for piece in pieces(arrays.values.asnumpy().ravel()) if self._first else [np.float16(0)] * PIECES:
                # Also of zeros: what writes the array comes after the push before it, and so has it answered first.
                arrays.wire[: arrays.values.size] = piece
                self._plain.push(name, arrays.wire)
            under_way.append(arrays.wire)
            size += arrays.wire.size * 2 * PIECES
            if size > MOST_BYTES:
                _clear(under_way)
                size = 0
        _clear(under_way)


def _clear(wires: List[mx.nd.NDArray]) -> None:
    """Wait until what was pushed of these arrays is answered, and forget it."""
    for wire in wires:
        wire[:] = 0
        wire.wait_to_read()
    wires.clear()
