"""Parameters and gradients that wait for what is under way when somebody looks at them.

While a sum or an update of a parameter is under way, the parameter's class is :class:`GuardedParameter`. PyTorch then hands every use of
it in Python to ``__torch_function__``, which waits first, makes it a plain ``nn.Parameter`` again, and goes on. So nothing has to know who
uses a parameter, or how: a module, a function that is given a weight, an average of weights, ``state_dict()``. A parameter with nothing
under way is plain and costs nothing. ``isinstance(p, nn.Parameter)`` holds at any time.

Guards do not see C++ code that reads a parameter without being given it from Python. PyTorch's own such code, autograd's accumulation,
finds ``grad`` empty while a sum is under way.

A gradient that lies in the flat buffer is a :class:`GuardedGradient` once the program has it. The next backward writes there, so the first
use of it in Python gives it memory of its own, but for what hands on nothing of it, as clipping. A gradient that nobody uses costs nothing,
as the flat buffer is used again.
"""

import sys
from typing import Any, Callable, Dict, Iterable, Optional, Protocol, Sequence

import torch
from torch import nn
from torch.nn.utils import clip_grad

from .hooks import untraced

plainly = torch._C.DisableTorchFunctionSubclass  # a context in which guards do not act, for this thread


class Watched(Protocol):
    """What guards ask about a parameter, in the thread that uses it. All of it but ``updating`` may wait."""

    @property
    def updating(self) -> bool:
        """Whether the value is not to be used before :meth:`await_update`."""

    def await_update(self) -> None:
        """Return when the update is done; the parameter is plain then."""

    def read_grad(self, clips: bool = False) -> Optional[torch.Tensor]:
        """What ``grad`` is to be. ``clips``: for ``clip_grad_norm_``, which may get a gradient that is *lent*: its sum is not there yet."""

    def lent_norm(self) -> Optional[torch.Tensor]:
        """The 2-norm of a lent gradient; None if it is not lent."""

    def lent_multiply(self, factor: Any) -> bool:
        """Multiply a lent gradient; False if it is not lent."""

    def write_grad(self, value: Optional[torch.Tensor]) -> None:
        """``grad`` is this from now on."""

    def await_gradient(self) -> None:
        """Return when sum and update are done: the gradient in the flat buffer may be read and written until the next backward."""

    def await_own_memory(self) -> None:
        """Return when sum and update are done, and what the program holds of the gradient in the flat buffer has memory of its own."""


_watched: Dict[int, Watched] = {}  # by id of the parameter, and of a guarded gradient; both outlive their entry


def register(param: nn.Parameter, watched: Watched) -> None:
    """From now on uses of this parameter, while guarded, ask ``watched``."""
    _watched[id(param)] = watched


def unregister(param: nn.Parameter) -> None:
    """The parameter is no longer scheduled."""
    _watched.pop(id(param), None)


def is_tracked(param: torch.Tensor) -> bool:
    """Whether an optimizer schedules this parameter."""
    return id(param) in _watched


def guard_gradient(view: torch.Tensor, watched: Watched) -> None:
    """Uses of this gradient in the flat buffer ask ``watched`` first, until :func:`unguard_gradient`."""
    _watched[id(view)] = watched
    view.__class__ = GuardedGradient


def unguard_gradient(view: torch.Tensor) -> None:
    """It is a plain tensor again."""
    if type(view) is GuardedGradient:
        view.__class__ = torch.Tensor
        _watched.pop(id(view), None)


class GuardedParameter(nn.Parameter):
    """A parameter with a sum or an update under way."""

    @classmethod
    @untraced
    def __torch_function__(cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    @untraced
    def __deepcopy__(self, memo: Dict[int, Any]) -> nn.Parameter:
        if id(self) not in memo:
            memo[id(self)] = nn.Parameter(self.data.clone(memory_format=torch.preserve_format), self.requires_grad)
        result: nn.Parameter = memo[id(self)]
        return result


class GuardedGradient(torch.Tensor):
    """A gradient in the flat buffer, also while its update is under way: most programs only compare it with None."""

    @classmethod
    @untraced
    def __torch_function__(cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What somebody does with a guarded parameter or gradient."""
    if func in _HARMLESS:
        with plainly():
            return func(*args, **kwargs)
    special = _OF_GRAD.get(func)
    if special is not None and type(args[0]) is GuardedParameter:
        return special(*args)
    lent = _OF_LENT.get(func)
    if lent is not None and len(args) > 1:
        result = lent(*args, **kwargs)
        if result is not NotImplemented:
            return result
    if args and func in _LEAVES_NOTHING and _await_gradients(args, kwargs):
        with plainly():
            return func(*args, **kwargs)
    if wait_for(args) + wait_for(kwargs.values()):
        with plainly():  # the values are current, only gradients are under way
            return func(*args, **kwargs)
    return func(*args, **kwargs)


def wait_for(values: Iterable[Any]) -> int:
    """Wait for the updates of all parameters among these values, also in lists; how many stay guarded, as only their sum is under way."""
    left = 0
    for value in values:
        kind = type(value)
        if kind is GuardedParameter:
            watched = _watched[id(value)]
            if watched.updating:
                watched.await_update()
            else:
                left += 1
        elif kind is GuardedGradient:
            entry = _watched.get(id(value))
            if entry is not None:  # else another thread was here before
                entry.await_own_memory()
        elif isinstance(value, (list, tuple)):  # also of a class of its own, as a named tuple
            left += wait_for(value)
        elif isinstance(value, dict):
            left += wait_for(value.values())
    return left


def _await_gradients(args: Sequence[Any], kwargs: Dict[str, Any]) -> bool:
    """Wait for all guarded gradients in the first argument; False, at once, if there are others, or something that autograd would note."""
    gradients = args[0] if isinstance(args[0], (list, tuple)) else [args[0]]
    for each in (*args[1:], *kwargs.values()):
        if not isinstance(each, (int, float, torch.dtype)) and (type(each) is not torch.Tensor or each.requires_grad):
            return False
    with plainly():
        if any(type(each) not in (GuardedGradient, torch.Tensor) or each.requires_grad for each in gradients):
            return False
    for each in gradients:
        watched = _watched.get(id(each)) if type(each) is GuardedGradient else None
        if watched is not None:
            watched.await_gradient()
    return True


def _read_grad(param: nn.Parameter, *_: Any) -> Optional[torch.Tensor]:
    # PyTorch hands the use of a parameter to __torch_function__ right where it happens: below our calls and the one of ``untraced``.
    frame: Any = sys._getframe(1)
    while frame.f_globals is _OURS or frame.f_globals is _UNTRACED:
        frame = frame.f_back
    return _watched[id(param)].read_grad(_clips_by_norm(frame))


_OURS, _UNTRACED = globals(), GuardedParameter.__torch_function__.__func__.__globals__  # type: ignore[attr-defined]


_CLIPS = vars(clip_grad)  # clip_grad_norm_ is found by its module: programs and frameworks have it by several names


def _clips_by_norm(frame: Any) -> bool:
    if frame.f_globals is not _CLIPS:
        return False
    if frame.f_code.co_name == "<listcomp>":  # before Python 3.12 it has a frame of its own
        frame = frame.f_back
    return frame.f_code.co_name != "clip_grad_value_"


# What clip_grad_norm_ does with gradients, which nothing else gets while they are lent.


def _norm(gradient: Any, order: Any, *more: Any, **named: Any) -> Any:
    return NotImplemented if more or named else _norms([gradient], order, unpacked=True)


def _norms(gradients: Sequence[Any], order: Any, *more: Any, unpacked: bool = False, **named: Any) -> Any:
    if more or named or order != 2 or any(type(each) is not GuardedGradient for each in gradients):
        return NotImplemented
    found = [_watched[id(each)].lent_norm() for each in gradients]
    return NotImplemented if any(each is None for each in found) else found[0] if unpacked else found


def _multiply(gradient: Any, factor: Any, *more: Any, **named: Any) -> Any:
    return NotImplemented if _multiply_all([gradient], factor, *more, **named) is NotImplemented else gradient


def _multiply_all(gradients: Sequence[Any], factor: Any, *more: Any, **named: Any) -> Any:
    single = isinstance(factor, float) or type(factor) is torch.Tensor and factor.dim() == 0 and not factor.requires_grad
    if more or named or not single or any(type(each) is not GuardedGradient for each in gradients):
        return NotImplemented
    for each in gradients:
        if not _watched[id(each)].lent_multiply(factor):
            _watched[id(each)].await_gradient()
            with plainly():
                each.mul_(factor)
    return None


_T: Any = torch.Tensor
_OF_LENT: Dict[Any, Callable[..., Any]] = {
    torch.linalg.vector_norm: _norm,
    torch._foreach_norm: _norms,
    _T.mul_: _multiply,
    torch._foreach_mul_: _multiply_all,
}
# They read the values of gradients, or change them in place, and hand on nothing that would use the same memory.
_LEAVES_NOTHING = frozenset(
    [torch.linalg.vector_norm, _T.mul_, _T.div_, _T.clamp_]
    + [
        getattr(torch, name)
        for name in ("_foreach_norm", "_foreach_mul_", "_foreach_clamp_min_", "_foreach_clamp_max_")
        + ("_amp_foreach_non_finite_check_and_unscale_",)
        if hasattr(torch, name)
    ]
)
_OF_GRAD: Dict[Any, Callable[..., Any]] = {
    _T.grad.__get__: _read_grad,
    _T.grad.__set__: lambda param, value: _watched[id(param)].write_grad(value),
    _T.grad.__delete__: lambda param: _watched[id(param)].write_grad(None),
}

# They reveal nothing of a parameter's values. Not size() and dim(): torch.vmap asks for them before it hands a parameter to C++ code.
_HARMLESS = frozenset(
    [
        getattr(_T, name).__get__
        for name in ("shape", "dtype", "device", "layout", "is_leaf", "requires_grad", "ndim", "is_cuda", "is_cpu", "is_sparse", "grad_fn")
        + ("is_quantized", "is_mkldnn", "is_meta", "is_nested", "names", "itemsize", "nbytes")
        if hasattr(getattr(_T, name, None), "__get__")
    ]
    + [_T.requires_grad.__set__, _T.numel, _T.nelement, _T.stride, _T.is_contiguous, _T.element_size]
    + [_T.is_floating_point, _T.is_complex, _T.storage_offset, _T.get_device, _T.__len__, _T.register_hook]
    + [_T.register_post_accumulate_grad_hook, torch.is_floating_point, torch.is_complex, torch.numel]
)
