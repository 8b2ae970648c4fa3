"""The server side of slices and groups: the user's optimizer, applied to each element as it would be in the array of its parameter.

MXNet's server passes the number of a key to its optimizer. Learning-rate and weight-decay multipliers depend on that number, and so does
the count of updates that schedules and bias corrections use. :class:`SliceOptimizer` gives a slice the number of its parameter and an
update count of its own. What updates an array, and that of a group, is in server_updates.py.

The servers may lack prophet_mx, or have another version of it. MXNet only prints an error there if it cannot load an optimizer, and adds
gradients up from then on. So a pickled SliceOptimizer contains the text of both files, which need nothing but MXNet.
"""

import inspect
import pickle
import re
import sys
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from . import server_updates
from .server_updates import Group, Whole


class Direct(mx.optimizer.Updater):
    """MXNet's Updater, but for keys that have been updated before: it does not look up again what a server never changes."""

    def __call__(self, index: Any, grad: Any, weight: Any) -> None:
        state = self.states.get(index)
        if state is None:
            super().__call__(index, grad, weight)
        else:
            state.update(weight, grad)


def _present() -> Any:
    """The optimizer that a server has, without what prophet_mx has put around it; None if it has none, or this is no server. Called while
    the server loads another."""
    frame = sys._getframe()
    while frame is not None:
        store = getattr(frame.f_locals.get("self"), "kvstore", None)  # of MXNet's KVStoreServer, which is known nowhere else
        if store is not None:
            found = getattr(store._updater, "optimizer", None)
            return getattr(found, "inner", found) if type(found).__name__ == SliceOptimizer.__name__ else found
        frame = frame.f_back  # type: ignore[assignment]
    return None


# An empty one, made of the text of these files, for Python's eval.
EMPTY = "exec(source, scope) or scope['SliceOptimizer'].__new__(scope['SliceOptimizer'])"


class SliceOptimizer(mx.optimizer.Optimizer):
    """``inner`` for a server that holds slices and groups; runs there, in the server's main thread.

    Parameters
    ----------
    inner : the user's optimizer.
    parameters : number of the parameter for each slice's number. Numbers not in it are the parameters themselves.
    service : numbers of the keys for messages between workers: the servers store the sum of what is pushed, and update nothing.
    probes : numbers of the keys with which workers measure what a message costs: updated by a copy of ``inner``, which takes as long and
        changes nothing.
    first, last : numbers of the first and the last key of prophet_mx. Later keys of the caller are shown to ``inner`` as numbered from
        ``first`` on, as they would be without prophet_mx.
    shift : whether they are: string keys are numbered as they come, but int keys are their own numbers.
    groups : for the number of each group's key, number of the parameter and elements of each member, in the order of the array.
    workers : how many there are.
    values : for the number of each group's key, type and bytes in hexadecimal of what its members have, if the servers had no optimizer so
        far: they then stored what a message adds up to, also for members that not all workers had sent. Numbers that are not in it have
        their values there.
    adopts : whether a server that has an optimizer keeps that as ``inner``, as the last that any worker has set.
    """

    def __init__(
        self,
        inner: "mx.optimizer.Optimizer",
        parameters: Dict[int, int],
        service: Sequence[int],
        probes: Sequence[int],
        first: int,
        last: int,
        shift: bool,
        groups: Optional[Dict[int, Tuple[Tuple[int, int], ...]]] = None,
        workers: int = 1,
        values: Optional[Dict[int, Tuple[str, str]]] = None,
        adopts: bool = False,
    ) -> None:
        super().__init__()
        self.parameters = parameters
        self.service = frozenset(service)
        self.probes = frozenset(probes)
        self.first, self.last, self.shift = first, last, shift
        self.groups, self.workers, self.values = groups or {}, workers, values or {}
        self.adopts = adopts
        self.aggregate_num = 0  # the Updater passes single arrays
        self._wrap(inner)

    def _wrap(self, inner: "mx.optimizer.Optimizer") -> None:
        self.inner = inner
        self._counts = dict(inner._all_index_update_counts.get(0, {}))  # a server's arrays are on device 0
        self._trial = pickle.loads(pickle.dumps(inner)) if self.probes else inner
        self.multi_precision = inner.multi_precision
        self.allow_np_array = inner.allow_np_array

    def __setstate__(self, state: Dict[str, Any]) -> None:
        super().__setstate__(state)
        present = _present() if self.adopts else None
        if present is not None:
            self._wrap(present)

    def __reduce__(self) -> Tuple[Callable[..., Any], Tuple[Any, ...], Any]:
        here = inspect.getsource(inspect.getmodule(SliceOptimizer) or SliceOptimizer)
        source = inspect.getsource(server_updates) + re.sub(r"(?m)^from \..*\n", "", here)  # in one piece, they need no package
        return eval, (EMPTY, {"source": source, "scope": {"__name__": __name__}}), self.__getstate__()

    def _number(self, key: int) -> int:
        if key in self.parameters:
            return self.parameters[key]
        return key - (self.last - self.first + 1) if self.shift and key > self.last else key

    def _set_current_context(self, device_id: int) -> None:
        self.inner._set_current_context(device_id)

    def create_state_multi_precision(self, index: int, weight: Any) -> Any:
        """What updates the key: None for one whose sum is stored."""
        updater = sys._getframe(1).f_locals.get("self")  # the server has made it, and has no other way to get another
        if type(updater) is mx.optimizer.Updater:
            updater.__class__ = Direct
        if index in self.service:
            return None
        if index in self.groups:
            self._restore(index, weight)
            return Group(self.inner, self.groups[index], self.workers, weight)
        if index in self.probes:
            return Whole(self._trial, index, weight)
        number = self._number(index)
        count = self._counts.get(number, self.inner.begin_num_update) if index in self.parameters else None
        return Whole(self.inner, number, weight, count)

    def _restore(self, group: int, weight: Any) -> None:
        """Before the first update of a group: give its members their values, if they are not there. What all workers had in the last
        message is there, and servers may hold it in more bits than workers got."""
        updated = vars(mx.optimizer).setdefault("prophet_mx_groups", set())  # by any optimizer that this server had
        if group in self.values and group not in updated:
            kind, text = self.values[group]
            values = np.frombuffer(bytes.fromhex(text), kind)
            held, stop = weight.asnumpy(), 0
            for (_, elements), word in zip(self.groups[group], held[values.size :]):
                start, stop = stop, stop + elements
                if word != self.workers:
                    held[start:stop] = values[start:stop]
            weight[:] = held
        updated.add(group)

    def update_multi_precision(self, index: int, weight: Any, grad: Any, state: Any) -> None:
        if state is None:
            weight[:] = grad
        else:
            state.update(weight, grad)
