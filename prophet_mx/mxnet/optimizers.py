"""What a worker has to know of an optimizer that is to run on the servers: whether it is exact on slices, whether the order of its updates
matters, whether it goes by the numbers of keys, and whether the servers can load it. Only MXNet's own optimizers are known.
"""

import pickle
import pickletools
import sys
from numbers import Integral
from typing import Any, List

import mxnet as mx

from .server_sgd import is_builtin

# Each element's update depends on that element alone: exact on slices.
ELEMENTWISE = frozenset(
    ("SGD", "NAG", "Signum", "FTML", "DCASGD", "Adam", "AdaGrad", "RMSProp", "AdaDelta", "Ftrl", "Adamax", "ccSGD", "Test")
)
# An update depends on those of other keys before it: a shared schedule (Nadam), the learning rate that was last used (LARS, LBSGD), a
# random stream (SGLD).
ORDERED = frozenset(("Nadam", "SGLD", "LARS", "LBSGD"))


def slicing_allowed(optimizer: mx.optimizer.Optimizer) -> bool:
    """Whether this optimizer is known to be exact on slices."""
    return type(optimizer).__name__ in ELEMENTWISE and is_builtin(optimizer)


def order_matters(optimizer: mx.optimizer.Optimizer) -> bool:
    """Whether the result depends on the order in which different keys are updated."""
    return any(cls.__name__ in ORDERED and cls.__module__ == "mxnet.optimizer.optimizer" for cls in type(optimizer).__mro__)


def may_know_numbers(optimizer: Any, first: int) -> bool:
    """Whether an optimizer may treat a key by its number, if that is ``first`` or more. MXNet's own do where they have a name or a
    multiplier for the number; what others do is not known."""
    known = [number for table in ("idx2name", "lr_mult", "wd_mult") for number in getattr(optimizer, table, ())]
    return not is_builtin(optimizer) or any(isinstance(number, Integral) and int(number) >= first for number in known)


def of_the_script(optimizer: mx.optimizer.Optimizer) -> List[str]:
    """Classes of the script itself without which no server can load this optimizer: those derived from MXNet's. A server runs the script
    as far as ``import mxnet``, where it becomes a server, and so knows nothing of what comes after. The optimizer can be pickled."""
    names = [str(name) for code, name, _ in pickletools.genops(pickle.dumps(optimizer, 0)) if code.name == "GLOBAL"]
    ours = [name.split(" ", 1)[1] for name in dict.fromkeys(names) if name.startswith("__main__ ")]
    kinds = [getattr(sys.modules["__main__"], name, None) for name in ours]
    return [name for name, kind in zip(ours, kinds) if any(base.__module__.startswith("mxnet.") for base in getattr(kind, "__mro__", ()))]
