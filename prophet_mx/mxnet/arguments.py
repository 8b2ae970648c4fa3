"""What a caller hands to a scheduled store, checked before anything is sent. Every error is a :class:`~prophet_mx.KVStoreError`, and the
store is then as it was before the call.

MXNet itself leaves much of this to the servers: a wrong size or an object that is not an optimizer ends a server process, after which all
workers wait forever. If MXNet itself refuses a call, the error raised here is also an instance of what MXNet raises, so that a script's
``except mx.MXNetError`` keeps working. These errors stand apart from ``prophet_mx/errors.py``, which is imported where MXNet must not be.
"""

import math
import operator
import pickle
from typing import Any, Dict, List, Optional, Sequence, Tuple, Type

import mxnet as mx
import numpy as np
from mxnet.base import MXNetError
from mxnet.ndarray import NDArray

from .. import _core
from ..config import shown
from ..errors import KVStoreError, not_allowed
from ..planning.placement import FACTOR, SURE
from .keys import MAX_KEY, KeyBook, Shape, shape_of
from .optimizers import of_the_script

MAX_DEVICES = _core.MAX_OUTS
COMPRESSIONS = ("none", "2bit")
HELD = ("float16", "float32", "float64")  # what servers can hold


class KVStoreMXNetError(KVStoreError, MXNetError):
    """What MXNet's library refuses: an unknown key, one that is already initialised, a wrong shape, size or parameter."""


class KVStoreTypeError(KVStoreError, AssertionError, TypeError):
    """An argument of a wrong type, or lists that do not belong together. MXNet asserts or raises a TypeError, depending on the value."""


class KVStoreOverflowError(KVStoreError, OverflowError):
    """A number of more than 32 bits."""


class KVStoreAttributeError(KVStoreError, AttributeError):
    """An object that is not an optimizer."""


class KVStorePicklingError(KVStoreError, pickle.PicklingError, AttributeError, TypeError):
    """An optimizer that cannot be pickled. Pickle raises one of these, depending on what cannot be pickled."""


def as_list(value: Any) -> List[mx.nd.NDArray]:
    """One array, or a list with one array per device, as a list."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


def type_name(dtype: Any) -> str:
    """The name of the type of an array's elements."""
    names = np.dtype(dtype).names
    return names[0] if names else np.dtype(dtype).name


def check_key(key: Any) -> None:
    """Check that this is a text that is not empty, or a whole number from 0."""
    if isinstance(key, str) and key or isinstance(key, int) and not isinstance(key, bool) and 0 <= key <= MAX_KEY:
        return
    kind: Type[KVStoreError] = KVStoreTypeError
    if isinstance(key, (str, int)):
        kind = KVStoreMXNetError if isinstance(key, str) or abs(key) <= MAX_KEY else KVStoreOverflowError
    raise kind(not_allowed(f"key {shown(key):.80}", "a text, or a whole number from 0 to 2**31 - 1"))


def check_lists(key: Any, **lists: Any) -> None:
    """Check that ``key`` is a list of keys of one type, and every other argument a list of the same length, or None."""
    for name, values in lists.items():
        if values is None:
            continue
        if not isinstance(values, (list, tuple)) or len(values) != len(key):
            what = f"{len(values)}" if isinstance(values, (list, tuple)) else f"a {type(values).__name__}"
            raise KVStoreTypeError(f"{len(key)} keys need a list of {len(key)} for {name}, not {what}")
    if not key:
        raise KVStoreMXNetError("an empty list of keys")
    for name in key:
        check_key(name)
    if len({isinstance(name, str) for name in key}) > 1:
        raise KVStoreTypeError("a list of keys of different types: the keys of one store are all strings or all integers")


def grouped(key: Sequence[Any], *lists: Any) -> Tuple[Any, ...]:
    """The keys of a call, each once, with the lists of their arrays. As in MXNet, the arrays of a key that is there several times count as
    those of several devices: pushes are added up, and every array gets the pulled value. The caller has checked the lists."""
    if len(set(key)) == len(key):
        return (key, *lists)
    places: Dict[Any, List[int]] = {}
    for place, name in enumerate(key):
        places.setdefault(name, []).append(place)
    return (
        list(places),
        *(values and [[array for place in same for array in as_list(values[place])] for same in places.values()] for values in lists),
    )


def arrays_of(key: Any, name: str, value: Any) -> List[mx.nd.NDArray]:
    """The arrays of one key, one per device."""
    arrays = as_list(value)
    if not arrays or not all(isinstance(array, mx.nd.NDArray) for array in arrays):
        kind: Type[KVStoreError] = KVStoreTypeError if arrays else KVStoreMXNetError
        raise kind(f"key {shown(key):.80}: {name} is an NDArray, or a list of one per device, not {_kind(value)}")
    if len(arrays) > MAX_DEVICES:
        raise KVStoreError(f"key {shown(key):.80}: {name} has {len(arrays)} arrays; allowed: one per device, at most {MAX_DEVICES}")
    if len(arrays) > 1 and len({_core.array_shape(array.handle.value) for array in arrays}) > 1:
        raise KVStoreMXNetError(
            f"key {shown(key):.80}: {name} has arrays of different shapes: " + ", ".join(sorted({str(array.shape) for array in arrays}))
        )
    if name == "value" and len({(array.stype, array.dtype) for array in arrays}) > 1:
        raise KVStoreMXNetError(f"key {shown(key):.80}: value has arrays of different types")
    return arrays


def _kind(value: Any) -> str:
    """The type of a value, or the types in a list. Not the ``repr``, which waits for an array's value."""
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(type(one).__name__ for one in value[:4]) + (", ...]" if len(value) > 4 else "]")
    return type(value).__name__


def checked_priority(priority: Any) -> int:
    """The priority as an int of 32 bits."""
    try:
        number = operator.index(priority)
    except TypeError:
        raise KVStoreTypeError(not_allowed(f"priority={shown(priority):.80}", "a 32-bit integer")) from None
    if not -MAX_KEY <= number <= MAX_KEY:
        raise KVStoreOverflowError(not_allowed(f"priority={shown(priority):.80}", "a 32-bit integer"))
    return number


def check_init(book: KeyBook, key: Any, value: Any, out: Any = None) -> None:
    """Check the arguments of init and of broadcast."""
    if not isinstance(key, (list, tuple)):
        key, value, out = [key], [value], None if out is None else [out]
    check_lists(key, value=value, out=out)
    if value is None:
        raise KVStoreTypeError(f"key {shown(key[0]):.80}: no value")
    for place, name in enumerate(key):
        if name in book.initialised or name in key[:place]:
            raise KVStoreMXNetError(f"key {name!r} is already initialised")
        if isinstance(name, str) != isinstance(next(iter(book.initialised), key[0]), str):
            raise KVStoreMXNetError(f"key {name!r}: the keys of one store are all strings or all integers")
        array = arrays_of(name, "value", value[place])[0]
        if type_name(array.dtype) not in HELD:
            raise KVStoreMXNetError(
                f"key {name!r}: MXNet's servers cannot hold {type_name(array.dtype)}: they end; allowed: {', '.join(HELD)}"
            )
        for target in () if out is None else arrays_of(name, "out", out[place]):
            if target.shape != array.shape:
                raise KVStoreMXNetError(f"key {name!r}: the value has the shape {array.shape}, out has another")
            if target.stype == "default" and target.dtype != array.dtype:  # MXNet pulls into it as if it were of the value's type
                raise KVStoreMXNetError(f"key {name!r}: out has the type {type_name(target.dtype)}, the value {type_name(array.dtype)}")
        number = book.unplaceable(name, place, math.prod(array.shape))
        if number is not None:
            raise KVStoreMXNetError(
                f"key {name!r}: MXNet cannot place number {number} on {book.servers} servers, as the number times "
                f"{FACTOR} overflows 32 bits; numbers up to {SURE} are safe"
            )


def check_transfer(book: KeyBook, key: Any, value: Any, out: Any, buffer: Optional[mx.nd.NDArray] = None) -> None:
    """Check the arguments of one key's push, pull or pushpull; None stands for one that is not given. ``buffer`` is the buffer of a
    parameter that is scheduled already: its arrays must be like it.

    A signal handler may pull, so this reads shapes in the way that is safe there.
    """
    check_key(key)
    if book.initialised and key not in book.initialised:
        raise KVStoreMXNetError(
            f"key {key!r} was not initialised through this store (which has {len(book.initialised)} keys); initialise "
            "all keys after it was wrapped"
        )
    known = book.shapes.get(key) if buffer is None else shape_of(buffer)
    for name, given in (("value", value), ("out", out)):
        if given is None:
            continue
        for array in arrays_of(key, name, given):
            if known is not None and _core.array_shape(array.handle.value) != known.shape:
                raise KVStoreMXNetError(f"key {key!r}: {name} has the shape {array.shape}, the parameter {known.shape}")
            if known is not None and array.dtype != known.dtype and (buffer is not None or name == "value"):
                raise KVStoreMXNetError(
                    f"key {key!r}: {name} has the type {type_name(array.dtype)}, the parameter {type_name(known.dtype)}"
                )
            if known is not None and array.stype != "default" and (buffer is not None or name == "value"):
                raise KVStoreMXNetError(
                    f"key {key!r}: {name} is {array.stype}, the parameter is dense, and MXNet's servers cannot take that; make both sparse "
                    "(gluon.contrib.nn.SparseEmbedding), or the gradient dense (sparse_grad=False)"
                )
    sparse = book.sparse_shapes.get(key)
    if sparse is not None and value is not None:
        for array in as_list(value):
            _check_like(key, "value", array, sparse)
    if value is not None and out is not None:
        mine, other = as_list(value)[0], as_list(out)[0]
        if mine.shape != other.shape:
            raise KVStoreMXNetError(f"key {key!r}: value has the shape {mine.shape}, out {other.shape}")
        if mine.stype == "default" and any((one.stype, one.dtype) != (mine.stype, mine.dtype) for one in as_list(out)):
            raise KVStoreMXNetError(f"key {key!r}: out has another type than value ({type_name(mine.dtype)})")


def check_rows(book: KeyBook, key: Any, out: Any = None) -> None:
    """Check the keys of a pull of rows, and the arrays. If a key is dense, MXNet refuses the pull on rank 0 alone, and the others would get
    an old value. An array of another type or shape would end the process, if nothing was pushed before."""
    several = isinstance(key, (list, tuple))
    for name, given in zip(key, out) if several and isinstance(out, (list, tuple)) else [(name, out) for name in as_list(key)]:
        if not isinstance(name, (str, int)):
            continue  # MXNet refuses it
        if name in book.shapes:
            raise KVStoreMXNetError(f"key {name!r:.80} is dense: its rows cannot be pulled; pull all of it")
        known = book.sparse_shapes.get(name)
        if known is None or given is None:
            continue
        for array in arrays_of(name, "out", given):
            if array.stype != "row_sparse":
                raise KVStoreMXNetError(f"key {name!r:.80}: rows can only be pulled into a row_sparse array, and out is {array.stype}")
            _check_like(name, "out", array, known)


def _check_like(key: Any, name: str, array: mx.nd.NDArray, known: Shape) -> None:
    """Check that an array has the shape and the type of a sparse key."""
    if (_core.array_shape(array.handle.value), array.dtype) != (known.shape, known.dtype):
        raise KVStoreMXNetError(
            f"key {key!r:.80}: {name} is {array.shape} {type_name(array.dtype)}, the parameter {known.shape} {type_name(known.dtype)}"
        )


def of_another_type(book: KeyBook, key: Any, out: Any) -> bool:
    """Whether a dense key is to be pulled into an array of another type. The caller has checked the arguments."""
    pairs = zip(key, out) if isinstance(key, (list, tuple)) else [(key, out)]
    return any(
        name in book.shapes and array.dtype != book.shapes[name].dtype
        for name, arrays in pairs
        for array in as_list(arrays)
        if array.stype == "default"
    )


def fit(native: "_core.Parameter", given: Any) -> bool:
    """Whether the arrays given for a scheduled parameter are like its buffer, as check_transfer demands. Fast, because every call asks."""
    arrays = given if isinstance(given, (list, tuple)) else (given,)
    for array in arrays:
        if not (isinstance(array, NDArray) and native.fits(array.handle.value)):
            return False
    return 0 < len(arrays) <= MAX_DEVICES


def pickled_optimizer(optimizer: Any) -> bytes:
    """The optimizer, pickled as the servers need it. Anything but an instance of MXNet's Optimizer would end the servers; where they cannot
    load one, they would print an error, and add up gradients from then on."""
    if not isinstance(optimizer, mx.optimizer.Optimizer):
        raise KVStoreAttributeError(
            "an optimizer is an mx.optimizer.Optimizer, as from mx.optimizer.create('sgd'), not " + _kind(optimizer)
        )
    try:
        pickled = pickle.dumps(optimizer)
    except Exception as error:  # whatever the optimizer's own parts raise
        why = " ".join(str(error).split())
        raise KVStorePicklingError(f"this {type(optimizer).__name__} cannot be pickled, but the servers need it pickled: {why}") from error
    unknown = of_the_script(optimizer)
    if unknown:
        raise KVStorePicklingError(
            f"the servers cannot load {unknown[0]}, a class of the script itself, which they run only as far as 'import mxnet'; put it "
            "into a module that the script imports, and that the servers find as well"
        )
    return pickled


def parameter_names(optimizer: Any) -> Dict[Any, str]:
    """The names of parameters by their keys, as far as an optimizer knows them: Trainer gives it the parameters, Module the names."""
    names = dict(getattr(optimizer, "idx2name", None) or {})
    names.update((key, getattr(parameter, "name", None)) for key, parameter in (getattr(optimizer, "param_dict", None) or {}).items())
    return {key: name for key, name in names.items() if isinstance(name, str)}


def check_compression(parameters: Any) -> None:
    """Check that this is a dict with a type that MXNet has, and with a positive threshold if it has one."""
    if not isinstance(parameters, dict) or parameters.get("type") not in COMPRESSIONS or set(parameters) - {"type", "threshold"}:
        kind: Type[KVStoreError] = KVStoreMXNetError if isinstance(parameters, dict) else KVStoreTypeError
        allowed = "a dict such as {'type': '2bit', 'threshold': 0.5}, type one of " + ", ".join(COMPRESSIONS)
        raise kind(not_allowed(f"compression {shown(parameters):.80}", allowed))
    threshold: Optional[float]
    try:
        threshold = float(parameters.get("threshold", 0.5))
    except (TypeError, ValueError, OverflowError):
        threshold = None
    if threshold is None or not 0 < threshold < math.inf:
        raise KVStoreMXNetError(not_allowed(f"threshold={shown(parameters['threshold']):.80}", "a positive, finite number"))
