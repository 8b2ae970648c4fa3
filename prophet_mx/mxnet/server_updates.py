"""How the server side of slices and groups updates its arrays: one key's, or that of a group.

MXNet calls an optimizer for each array by itself, and looks much up at each call. A group is updated in one call for all neighbours that
have equal multipliers and counts. What is not known to come out the same in every bit is left to the user's optimizer, key by key.

Servers get the text of this file with that of slice_optimizer.py. It needs nothing but MXNet.
"""

import ctypes
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from mxnet.base import _LIB, check_call
from mxnet.ndarray import NDArray  # not mx.nd: a server runs inside "import mxnet", which has not come to that name

from .server_masters import Master, address_of
from .server_sgd import MOST, SgdCall, _any_number_of_calls, _multipliers


def _apply(optimizer: Any, number: int, weight: Any, grad: Any, state: Any, counts: Sequence[int] = ()) -> None:
    """Update one array as MXNet's Updater does: optimizers that can update several arrays at once get lists. ``counts`` has the number of
    its updates so far; it is empty if the optimizer has counted them itself."""
    if counts:
        optimizer._index_update_count[number] = counts[0]
    if optimizer.aggregate_num > 0:
        optimizer.update_multi_precision((number,), (weight,), (grad,), [state])
    else:
        optimizer.update_multi_precision(number, weight, grad, state)


def _part(state: Any, start: int, stop: int) -> Any:
    """The same part of every array of an optimizer's state. It shares their memory."""
    if isinstance(state, (list, tuple)):
        return type(state)(_part(each, start, stop) for each in state)
    return state if state is None else state[start:stop]


class Whole:
    """The updates of one key: of a slice with a ``count`` of its own, or of a parameter. With a ``master``, the array of the key gets the
    changes of that."""

    def __init__(self, optimizer: Any, number: int, weight: Any, count: Optional[int] = None, master: Optional[Master] = None) -> None:
        self._optimizer, self._number, self._count, self._master = optimizer, number, count, master
        weight = weight if master is None else master.values
        self.state = optimizer.create_state_multi_precision(number, weight)
        self._call: Optional[SgdCall] = None
        if SgdCall.knows(optimizer) and type(weight) is NDArray:
            self._call = SgdCall(optimizer, [number], [self.state], optimizer.multi_precision and weight.dtype == np.float16)

    def update(self, weight: Any, grad: Any) -> None:
        if self._master is None:
            self._update(weight, grad)
            return
        try:
            self._update(self._master.values, grad)
        finally:
            self._master.change(weight, 0, weight.size)

    def _update(self, weight: Any, grad: Any) -> None:
        optimizer, number = self._optimizer, self._number
        counts = () if self._count is None else (self._count,)
        try:
            if self._call is not None and type(grad) is NDArray:
                self._call.put(0, weight, grad)
                self._call(counts or (optimizer._index_update_count.get(number, optimizer.begin_num_update),))
            else:
                _apply(optimizer, number, weight, grad, self.state, counts)
        finally:  # an update that fails counts as well
            if counts:
                self._count = optimizer._index_update_count.get(number, *counts)


class Views:
    """Parts of the array that a server passes at each update of a key. They are made again only if it has another place in memory."""

    def __init__(self) -> None:
        self._whole: Any = None  # keeps the memory, so that no other array gets its place
        self.address = 0  # of the first element, in main memory; 0 before it is anywhere
        self._parts: Dict[Tuple[int, int], Any] = {}

    def renewed(self, array: Any) -> bool:
        """Take the array. Returns whether it is another one."""
        address = address_of(array)
        if address and address == self.address:
            return False
        self._whole, self.address, self._parts = array, address, {}
        return True

    def part(self, start: int, stop: int) -> Any:
        if (start, stop) not in self._parts:
            self._parts[start, stop] = self._whole[start:stop]
        return self._parts[start, stop]


class Run(NamedTuple):
    """Neighbours that are updated in one call."""

    member: int  # the first
    start: int  # in the array
    stop: int


class Step(NamedTuple):
    """One call of a round, and the first member of each run that it updates."""

    members: List[int]
    call: Callable[[Sequence[int]], None]  # with how many updates each of them has had


class Group:
    """The updates of a group's key.

    Its array has the elements of its members, and behind them a presence word per member: how many workers have sent it in this round. A
    member that not all have sent keeps weight, state and count. The words are stored behind the weights, for the workers to read. With a
    ``master``, what is stored of a member are the changes of that.
    """

    def __init__(
        self, optimizer: Any, members: Sequence[Tuple[int, int]], workers: int, weight: Any, master: Optional[Master] = None
    ) -> None:
        self._optimizer, self._master = optimizer, master
        self._numbers = [number for number, _ in members]
        self._starts = [0]
        for _, elements in members:
            self._starts.append(self._starts[-1] + elements)
        # A member's updates are its own and the rounds in which all were present.
        self._own = [optimizer._index_update_count.get(number, optimizer.begin_num_update) for number in self._numbers]
        self._rounds = 0
        self.state: Any = None
        self._has_state = False  # made at the first update, as what fails there must not keep the words from the workers
        self._half = optimizer.multi_precision and weight.dtype == np.float16
        words = np.full(len(members), workers, weight.dtype)
        self._full, self._one = words.tobytes(), words[:1].tobytes()
        self._plans: Dict[bytes, List[Step]] = {}  # by the words; valid for the counts as they are
        self._stored = b""  # the words behind the weights
        self._weight, self._grad = Views(), Views()
        self._updated = self._weight  # of which members are parts
        if master is not None:
            self._updated = Views()
            self._updated.renewed(master.values)

    def update(self, weight: Any, grad: Any) -> None:
        check_call(_LIB.MXNDArrayWaitToRead(grad.handle))
        # Both are asked, and not only until one says yes.
        if self._weight.renewed(weight) | self._grad.renewed(grad):
            self._plans = {}
        body = self._starts[-1]
        words = ctypes.string_at(self._grad.address + body * len(self._one), len(self._full))
        plan = self._plans.get(words)
        failures: List[Exception] = []
        try:
            if plan is None:
                plan = self._plans[words] = self._plan(words)
        except Exception as error:
            failures.append(error)
        for members, call in plan or ():
            try:
                call([self._own[member] + self._rounds for member in members])
            except Exception as error:  # the others are updated all the same
                failures.append(error)
        if self._master is not None:
            for member in self._present(words):
                self._master.change(weight, *self._starts[member : member + 2])
        # MXNet's server answers a key whose update failed like any other. So the words are stored also then, or workers would send the
        # group again for ever.
        if words != self._stored:
            end = body + len(self._numbers)
            self._grad.part(body, end).copyto(self._weight.part(body, end))
            self._stored = words
        if words == self._full:
            self._rounds += 1
        else:
            # In the runs of other plans, members may now differ from their neighbours.
            self._plans = {known: plan for known, plan in self._plans.items() if known == words}
            for member in self._present(words):
                self._own[member] += 1
        if failures:
            raise failures[0]  # the server prints it

    def _present(self, words: bytes) -> List[int]:
        width = len(self._one)
        return [member for member in range(len(self._numbers)) if words[member * width : (member + 1) * width] == self._one]

    def _plan(self, words: bytes) -> List[Step]:
        """What updates the members that all workers have sent."""
        optimizer = self._optimizer
        if not self._has_state:
            self.state = optimizer.create_state_multi_precision(self._numbers[0], self._updated.part(0, self._starts[-1]))
            self._has_state = True
        joins = _any_number_of_calls(optimizer.lr_scheduler) and not optimizer.param_dict
        runs: List[Run] = []
        last: Any = None  # where the run ends, and what its members have in common
        for member in self._present(words):
            start, stop = self._starts[member : member + 2]
            common = (self._own[member], *_multipliers(optimizer, self._numbers[member]))
            if joins and last == (start, common):
                runs[-1] = runs[-1]._replace(stop=stop)
            else:
                runs.append(Run(member, start, stop))
            last = (stop, common)
        states = [_part(self.state, run.start, run.stop) for run in runs]
        if not SgdCall.knows(optimizer):
            return [
                Step([run.member], partial(_apply, optimizer, self._numbers[run.member], *self._arrays(run), state))
                for run, state in zip(runs, states)
            ]
        steps = []
        for first in range(0, len(runs), MOST):
            some = runs[first : first + MOST]
            members = [run.member for run in some]
            call = SgdCall(optimizer, [self._numbers[member] for member in members], states[first : first + MOST], self._half)
            for place, run in enumerate(some):
                call.put(place, *self._arrays(run))
            steps.append(Step(members, call))
        return steps

    def _arrays(self, run: Run) -> Tuple[Any, Any]:
        return self._updated.part(run.start, run.stop), self._grad.part(run.start, run.stop)
