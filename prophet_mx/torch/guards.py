"""Parameters and gradients that wait for what is under way when somebody looks at them.

While a sum or an update of a parameter is under way, the parameter's class is :class:`GuardedParameter`. PyTorch then hands every use of
it in Python to ``__torch_function__``, which waits first, makes it a plain ``nn.Parameter`` again, and goes on. So nothing has to know who
uses a parameter, or how: a module, a function that is given a weight, an average of weights, ``state_dict()``. A parameter with nothing
under way is plain and costs nothing. ``isinstance(p, nn.Parameter)`` holds at any time.

Code in C++ that reads a parameter which it was not given from Python is not seen here; what PyTorch itself has of that (autograd's
accumulation) finds ``grad`` empty while a sum is under way.

A gradient that lies in the flat buffer is a :class:`GuardedGradient`. The next backward writes there, so the first use of it in Python
gives it memory of its own. A gradient that nobody uses costs nothing, as the flat buffer is used again.
"""

import sys
from typing import Any, Callable, Dict, Iterable, List, Protocol, Tuple

import torch
from torch import nn

from .tracked import CLEARED, IDLE, KEPT, STEPPING, Tracked

plainly = torch._C.DisableTorchFunctionSubclass  # a context in which guards do not act, for this thread


class Owner(Protocol):
    """What guards ask of the exchange; all of it may wait, in the caller's thread."""

    def release(self, tracked: Tracked) -> None:
        """Return when the update is done; the parameter is plain then."""

    def expose(self, tracked: Tracked) -> None:
        """Return when the sum is there and in the parameter's own ``grad``."""

    def clear(self, tracked: Tracked) -> None:
        """``grad`` is None from now on; an update that is under way still uses it."""

    def settle_gradient(self, tracked: Tracked) -> None:
        """Return when the sum and the update are done and what the program holds of the view has memory of its own."""


_owners: Dict[int, Tuple[Tracked, "Owner"]] = {}  # by id of the parameter, and of a guarded gradient; both outlive their entry


def register(tracked: Tracked, owner: Owner) -> None:
    """From now on uses of this parameter, while guarded, ask ``owner``."""
    _owners[id(tracked.param)] = tracked, owner


def unregister(tracked: Tracked) -> None:
    """The parameter is no longer scheduled."""
    _owners.pop(id(tracked.param), None)


def is_tracked(param: torch.Tensor) -> bool:
    """Whether another optimizer schedules this parameter."""
    return id(param) in _owners


def guard(tracked: Tracked, stage: int) -> None:
    """Nothing may look at this parameter from now on without waiting for what ``stage`` says."""
    tracked.stage = stage
    tracked.param.__class__ = GuardedParameter


def unguard(tracked: Tracked) -> None:
    """Reading this parameter no longer has to wait for anything."""
    tracked.stage = IDLE
    tracked.param.__class__ = nn.Parameter


class GuardedParameter(nn.Parameter):
    """A parameter with a sum or an update under way."""

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.compiler.is_compiling():
            return _run_uncompiled(func, args, kwargs or {})
        return _run(func, args, kwargs or {})

    def __deepcopy__(self, memo: Dict[int, Any]) -> nn.Parameter:
        if id(self) not in memo:
            memo[id(self)] = nn.Parameter(self.data.clone(memory_format=torch.preserve_format), self.requires_grad)
        result: nn.Parameter = memo[id(self)]
        return result


class GuardedGradient(torch.Tensor):
    """A gradient in the flat buffer, also while its update is under way: most who ask for one only compare it with None."""

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.compiler.is_compiling():
            return _run_uncompiled(func, args, kwargs or {})
        return _run(func, args, kwargs or {})


def _run(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What somebody does with a guarded parameter or gradient."""
    if func in _HARMLESS:
        with plainly():
            return func(*args, **kwargs)
    special = _OF_GRAD.get(func)
    if special is not None and type(args[0]) is GuardedParameter:
        return special(*args)
    if wait_for(args) + wait_for(kwargs.values()):
        with plainly():  # the values are current, only gradients are under way
            return func(*args, **kwargs)
    return func(*args, **kwargs)


_run_uncompiled = torch.compiler.disable(_run)


def wait_for(values: Iterable[Any]) -> int:
    """Wait for the updates of all parameters among these values, also in lists; how many stay guarded, as only their sum is under way."""
    left = 0
    for value in values:
        kind = type(value)
        if kind is GuardedParameter:
            tracked, owner = _owners[id(value)]
            if tracked.stage == STEPPING:
                owner.release(tracked)
            else:
                left += 1
        elif kind is GuardedGradient:
            entry = _owners.get(id(value))
            if entry is not None:  # else another thread was here before
                entry[1].settle_gradient(entry[0])
        elif kind in (list, tuple):
            left += wait_for(value)
        elif kind is dict:
            left += wait_for(value.values())
    return left


def guard_gradient(tracked: Tracked, owner: Owner) -> None:
    """Uses of the view ask ``owner`` first, until :func:`unguard_gradient`."""
    _owners[id(tracked.view)] = tracked, owner
    tracked.view.__class__ = GuardedGradient


def unguard_gradient(tracked: Tracked) -> None:
    """The view is a plain tensor again."""
    if type(tracked.view) is GuardedGradient:
        tracked.view.__class__ = torch.Tensor
        _owners.pop(id(tracked.view), None)


def _references(holder: List[torch.Tensor]) -> int:
    return sys.getrefcount(holder[0])


def _memory_references(tensor: torch.Tensor) -> int:
    count = getattr(torch._C, "_storage_Use_Count", None)
    return sys.maxsize if count is None else int(count(tensor.untyped_storage()._cdata))


_ALONE = _references([torch.empty(1)])  # of what one list or attribute refers to
_MEMORY_ALONE = min(_memory_references(torch.empty(1)), sys.maxsize - 1)


def held_elsewhere(gradient: List[torch.Tensor], tracked: Tracked) -> bool:
    """Whether anything but this list refers to the one tensor in it, or, if it was ``grad`` before backward, to its memory.

    With the guards off. The memory of a gradient that backward has just made has references of PyTorch's own.
    """
    if _references(gradient) > _ALONE:
        return True
    was_there = tracked.before is not None and tracked.before() is gradient[0]
    return was_there and _memory_references(gradient[0]) > _MEMORY_ALONE


def lent(tracked: Tracked) -> bool:
    """Whether the program holds the tensor in the flat buffer."""
    return sys.getrefcount(tracked.view) > _ALONE


def give_own_memory(tracked: Tracked, owner: Owner) -> None:
    """What the program holds as this gradient becomes a plain tensor with memory of its own; the flat buffer gets another view."""
    with plainly():
        gradient = tracked.view
        unguard_gradient(tracked)
        tracked.view = view_like(gradient, gradient, gradient.storage_offset())
        gradient.set_(gradient.clone(memory_format=torch.preserve_format))  # type: ignore[call-overload]
        guard_gradient(tracked, owner)


def view_like(flat: torch.Tensor, shape: torch.Tensor, offset: int) -> torch.Tensor:
    """A tensor on the memory of ``flat``, in the shape and strides of another. Not a view to autograd, as its memory may change."""
    return flat.new_empty(0).set_(flat.untyped_storage(), offset, shape.shape, shape.stride())  # type: ignore[call-overload,no-any-return]


def _get(param: nn.Parameter, *_: Any) -> Any:
    tracked, owner = _owners[id(param)]
    if tracked.zero == CLEARED:
        return None
    if tracked.stage == STEPPING:
        if tracked.gradient is tracked.view and not tracked.absent:
            return tracked.view
        owner.release(tracked)
        return param.grad
    if not tracked.exposed:
        owner.expose(tracked)
    with plainly():
        return param.grad


def _set(param: nn.Parameter, value: Any) -> None:
    tracked, owner = _owners[id(param)]
    if tracked.stage == STEPPING and value is None:
        owner.clear(tracked)
        return
    if tracked.stage == STEPPING:
        owner.release(tracked)
        param.grad = value
        return
    if not tracked.exposed and value is not None:
        owner.expose(tracked)
    tracked.exposed, tracked.zero = value is not None, CLEARED if value is None else KEPT
    with plainly():
        param.grad = value


def _delete(param: nn.Parameter) -> None:
    _set(param, None)


_T: Any = torch.Tensor
_OF_GRAD: Dict[Any, Callable[..., Any]] = {_T.grad.__get__: _get, _T.grad.__set__: _set, _T.grad.__delete__: _delete}

# What tells nothing of a parameter's values.
_HARMLESS = frozenset(
    [
        getattr(_T, name).__get__
        for name in ("shape", "dtype", "device", "layout", "is_leaf", "requires_grad", "ndim", "is_cuda", "is_cpu", "is_sparse", "grad_fn")
        + ("is_quantized", "is_mkldnn", "is_meta", "is_nested", "names", "itemsize", "nbytes")
        if hasattr(getattr(_T, name, None), "__get__")
    ]
    + [_T.requires_grad.__set__, _T.size, _T.dim, _T.numel, _T.nelement, _T.stride, _T.is_contiguous, _T.element_size]
    + [_T.is_floating_point, _T.is_complex, _T.storage_offset, _T.get_device, _T.__len__, _T.register_hook]
    + [_T.register_post_accumulate_grad_hook, torch.is_floating_point, torch.is_complex, torch.numel]
)
