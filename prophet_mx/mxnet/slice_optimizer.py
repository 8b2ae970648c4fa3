"""The server side of slices and groups: the user's optimizer, applied to each element as it would be in the array of its parameter.

MXNet's server passes the number of a key to its optimizer. Learning-rate and weight-decay multipliers depend on that number, and so does
the count of updates that schedules and bias corrections use. :class:`SliceOptimizer` gives a slice the number of its parameter and an
update count of its own. What updates an array, and that of a group, is in server_updates.py, with server_sgd.py and server_masters.py.

The servers may lack prophet_mx, or have another version of it. MXNet only prints an error there if it cannot load an optimizer, and adds
gradients up from then on. So a pickled SliceOptimizer contains the text of these files, which need nothing but MXNet. The user's optimizer
is a pickle inside it: if a server cannot load that, or if an update fails, SliceOptimizer tells the workers (failures.py). MXNet would
answer them as if nothing were wrong.
"""

import inspect
import os
import pickle
import re
import sys
import traceback
from functools import partial
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from . import server_masters, server_sgd, server_updates
from .server_masters import Halved, Master
from .server_updates import Group, Whole


class Direct(mx.optimizer.Updater):
    """MXNet's Updater, but for keys that have been updated before: it does not look up again what a server never changes."""

    def __call__(self, index: Any, grad: Any, weight: Any) -> None:
        state = self.states.get(index)
        if state is None:
            super().__call__(index, grad, weight)
            return
        try:
            state.update(weight, grad)
        except Exception as error:
            self.optimizer.failed(f"an update by {self.optimizer.name} failed", error, weight)
            raise


class Told:
    """What a server tells the workers: its first failure in words, '' while there is none. It is in the arrays of some keys of prophet_mx,
    which they pull: a character per element, and zeros behind them. The same for all optimizers that this server has had."""

    def __init__(self) -> None:
        self.failure = ""
        self.arrays: Dict[int, Any] = {}  # by the numbers of their keys, from the first push of each on

    @staticmethod
    def here() -> "Told":
        found: Told = vars(mx.optimizer).setdefault("prophet_mx_told", Told())
        return found

    def tell(self) -> None:
        """Write it into the arrays."""
        for array in self.arrays.values() if self.failure else ():
            codes = [ord(letter) if letter.isascii() else ord("?") for letter in self.failure[: array.size]]
            array[:] = np.array(codes + [0] * (array.size - len(codes)), np.float32)


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
    told : numbers of those of the service keys whose arrays tell workers of a failure.
    halves : numbers of the keys of slices and groups that carry changes in 16 bits.
    meets : whether the workers are meeting: they ask for failures afterwards.
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
        told: Sequence[int] = (),
        halves: Sequence[int] = (),
        values: Optional[Dict[int, Tuple[str, str]]] = None,
        meets: bool = False,
        adopts: bool = False,
    ) -> None:
        super().__init__()
        self.parameters = parameters
        self.service = frozenset(service)
        self.probes = frozenset(probes)
        self.first, self.last, self.shift = first, last, shift
        self.groups, self.workers, self.values = groups or {}, workers, values or {}
        self.told, self.halves, self.meets, self.adopts = frozenset(told), frozenset(halves), meets, adopts
        self.aggregate_num = 0  # the Updater passes single arrays
        self._wrap(inner)

    def _wrap(self, inner: "mx.optimizer.Optimizer") -> None:
        self.inner, self.name = inner, type(inner).__name__
        self._counts = dict(inner._all_index_update_counts.get(0, {}))  # a server's arrays are on device 0
        self._trial = pickle.loads(pickle.dumps(inner)) if self.probes else inner
        self.multi_precision = inner.multi_precision
        self.allow_np_array = inner.allow_np_array

    def __setstate__(self, state: Dict[str, Any]) -> None:
        super().__setstate__(state)
        present = _present() if self.adopts else None
        if present is not None:
            self._wrap(present)
            return
        try:
            self._wrap(pickle.loads(bytes.fromhex(state["inner"])))
        except Exception as error:
            traceback.print_exc()
            self.inner = None  # sums are stored, as by a server without an optimizer
            self.failed(f"a server could not load the optimizer {self.name}", error)

    def failed(self, what: str, error: Exception, weight: Any = None) -> None:
        """Tell the workers. If this server still has no way to, it ends: they get no answers then, and see that the connection is lost.
        What fails for an array without elements fails in plain ``dist_sync`` as well, and nothing is lost."""
        told = Told.here()
        if told.failure or (weight is not None and weight.size == 0):
            return
        told.failure = " ".join(f"{what}: {type(error).__name__}: {error}".split())
        told.tell()
        if self.told and not (told.arrays or self.meets) and os.environ.get("DMLC_ROLE") == "server":
            print(f"prophet_mx: {told.failure}; the server ends", file=sys.stderr, flush=True)
            os._exit(1)

    def __reduce__(self) -> Tuple[Callable[..., Any], Tuple[Any, ...], Any]:
        here = inspect.getmodule(SliceOptimizer) or SliceOptimizer
        texts = map(inspect.getsource, (server_masters, server_sgd, server_updates, here))
        source = re.sub(r"(?m)^from \..*\n", "", "\n".join(texts))  # in one piece, they need no package
        # MXNet sends pickles as texts, hence the hexadecimal digits.
        state = {**self.__getstate__(), "inner": pickle.dumps(self.inner).hex(), "_trial": None}
        return eval, (EMPTY, {"source": source, "scope": {"__name__": __name__}}), state

    def _number(self, key: int) -> int:
        if key in self.parameters:
            return self.parameters[key]
        return key - (self.last - self.first + 1) if self.shift and key > self.last else key

    def _set_current_context(self, device_id: int) -> None:
        if self.inner is not None:
            self.inner._set_current_context(device_id)

    def create_state_multi_precision(self, index: int, weight: Any) -> Any:
        """What updates the key: None for one whose sum is stored."""
        updater = sys._getframe(1).f_locals.get("self")  # the server has made it, and has no other way to get another
        if type(updater) is mx.optimizer.Updater:
            updater.__class__ = Direct
        if index in self.told:
            Told.here().arrays[index] = weight
        if index in self.service or self.inner is None:
            return None
        try:
            return self._new_state(index, weight)
        except Exception as error:
            self.failed(f"{self.name} failed as it made a state", error, weight)
            raise

    def _new_state(self, index: int, weight: Any) -> Any:
        if index in self.probes:
            return Whole(self._trial, index, weight)
        if index not in self.halves:
            return self._updates(index, weight)
        masters = vars(mx.optimizer).setdefault("prophet_mx_masters", {})  # by the numbers of keys, for any optimizer that this server has
        if index not in masters:
            elements = sum(count for _, count in self.groups[index]) if index in self.groups else weight.size
            masters[index] = Master(weight, elements)
        return Halved(masters[index], partial(self._updates, index, weight))

    def _updates(self, index: int, weight: Any, master: Optional[Master] = None) -> Any:
        """What updates the array of a key, or its master."""
        if index in self.groups:
            if master is None:
                self._restore(index, weight)
            return Group(self.inner, self.groups[index], self.workers, weight, master)
        number = self._number(index)
        count = self._counts.get(number, self.inner.begin_num_update) if index in self.parameters else None
        return Whole(self.inner, number, weight, count, master)

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
            if index in self.told:
                Told.here().tell()
            return
        try:
            state.update(weight, grad)
        except Exception as error:
            self.failed(f"an update by {self.name} failed", error, weight)
            raise
