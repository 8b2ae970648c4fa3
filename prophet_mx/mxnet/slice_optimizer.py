"""The server side of sliced parameters: the user's optimizer, applied to a slice as it would be to the whole parameter.

MXNet's server passes the number of a key to its optimizer. Learning-rate and weight-decay multipliers depend on that number, and so does
the count of updates that schedules and bias corrections use. :class:`SliceOptimizer` gives a slice the number of its parameter and an
update count of its own, so that every element gets exactly the update it would get in the whole array.

The servers may lack prophet_mx, or have another version of it. MXNet only prints an error there if it cannot load an optimizer, and adds
gradients up from then on. So a pickled SliceOptimizer contains the text of this file, which needs nothing but MXNet.
"""

import inspect
import pickle
from numbers import Integral
from typing import Any, Callable, Dict, Sequence, Tuple

import mxnet as mx

# Each element's update depends on that element alone: exact on slices.
ELEMENTWISE = frozenset(
    ("SGD", "NAG", "Signum", "FTML", "DCASGD", "Adam", "AdaGrad", "RMSProp", "AdaDelta", "Ftrl", "Adamax", "ccSGD", "Test")
)
# An update depends on those of other keys before it: a shared schedule (Nadam), the learning rate that was last used (LARS, LBSGD), a
# random stream (SGLD).
ORDERED = frozenset(("Nadam", "SGLD", "LARS", "LBSGD"))


def slicing_allowed(optimizer: "mx.optimizer.Optimizer") -> bool:
    """Whether this optimizer is known to be exact on slices. Only MXNet's own classes are known: a subclass may do anything."""
    return type(optimizer).__name__ in ELEMENTWISE and _is_builtin(optimizer)


def order_matters(optimizer: "mx.optimizer.Optimizer") -> bool:
    """Whether the result depends on the order in which different keys are updated."""
    return any(cls.__name__ in ORDERED and cls.__module__ == "mxnet.optimizer.optimizer" for cls in type(optimizer).__mro__)


def may_know_numbers(optimizer: Any, first: int) -> bool:
    """Whether an optimizer may treat a key by its number, if that is ``first`` or more. MXNet's own do where they have a name or a
    multiplier for the number; what others do is not known."""
    known = [number for table in ("idx2name", "lr_mult", "wd_mult") for number in getattr(optimizer, table, ())]
    return not _is_builtin(optimizer) or any(isinstance(number, Integral) and int(number) >= first for number in known)


def _is_builtin(optimizer: Any) -> bool:
    return type(optimizer).__module__ == "mxnet.optimizer.optimizer"


# An empty one, made of the text of this file, for Python's eval.
EMPTY = "exec(source, scope) or scope['SliceOptimizer'].__new__(scope['SliceOptimizer'])"


class SliceOptimizer(mx.optimizer.Optimizer):
    """``inner`` for a server that holds slices; runs there, in the server's main thread.

    Parameters
    ----------
    inner : the user's optimizer.
    parameters : number of the parameter for each slice's number. Numbers not in it are the parameters themselves.
    service : numbers of the keys for messages between workers: the servers store the sum of what is pushed, and update nothing.
    probes : numbers of keys with which they measure what a message costs: updated by a copy of ``inner``, which takes as long and
        changes nothing.
    first : the first number that prophet_mx made keys of, ``last`` the last: later keys of the caller count from ``first`` on, as
        they would without prophet_mx (string keys are numbered as they come; ints are the caller's own: ``shift`` is then False).
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
    ) -> None:
        super().__init__()
        self.inner = inner
        self.parameters = parameters
        self.service = frozenset(service)
        self.probes = frozenset(probes)
        self._trial = pickle.loads(pickle.dumps(inner)) if probes else inner
        self.first, self.last, self.shift = first, last, shift
        self.counts: Dict[int, int] = {}  # updates of each slice
        self.multi_precision = inner.multi_precision
        self.aggregate_num = inner.aggregate_num
        self.allow_np_array = inner.allow_np_array

    def __reduce__(self) -> Tuple[Callable[..., Any], Tuple[Any, ...], Any]:
        source = inspect.getsource(inspect.getmodule(SliceOptimizer) or SliceOptimizer)
        return eval, (EMPTY, {"source": source, "scope": {"__name__": __name__}}), self.__getstate__()

    def _number(self, key: int) -> int:
        if key in self.parameters:
            return self.parameters[key]
        return key - (self.last - self.first + 1) if self.shift and key > self.last else key

    def _set_current_context(self, device_id: int) -> None:
        self.inner._set_current_context(device_id)

    def create_state_multi_precision(self, index: int, weight: Any) -> Any:
        if index in self.service:
            return None
        if index in self.probes:
            return self._trial.create_state_multi_precision(index, weight)
        return self.inner.create_state_multi_precision(self._number(index), weight)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        key = index[0] if isinstance(index, (list, tuple)) else index  # a server updates one key at a time
        if key in self.service:
            as_arrays = isinstance(weight, (list, tuple))
            (weight[0] if as_arrays else weight)[:] = grad[0] if as_arrays else grad
            return
        if key in self.probes:
            self._trial.update_multi_precision(index, weight, grad, state)
            return
        number = self._number(key)
        as_given = type(index)((number,)) if isinstance(index, (list, tuple)) else number
        if key not in self.parameters:
            self.inner.update_multi_precision(as_given, weight, grad, state)
            return
        updates = self.inner._index_update_count
        updates[number] = self.counts.get(key, self.inner.begin_num_update)
        self.inner.update_multi_precision(as_given, weight, grad, state)
        self.counts[key] = updates[number]
