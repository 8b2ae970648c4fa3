"""Hooks that run our code before a module's forward, or after a gradient: in copies, in pickles, and where torch.compile meets them.

Nothing of ours becomes a part of a graph. Where torch.compile traces a program's step as well, it would trace all Python code that is run
meanwhile, also what PyTorch calls from C++ code: hooks, guards, callbacks. So whatever is called from outside is :func:`untraced`, and so
is all that it calls. It is never made so where it is used, but once: that takes longer than the call.
"""

import functools
import inspect
import weakref
from typing import Any, Callable, Dict, Tuple

import torch
from torch import nn

# PyTorch shows it where fullgraph=True forbids the break.
_REASON: Dict[str, Any] = {"reason": "with fullgraph=True, compile the model before ScheduledOptimizer(model, optimizer)"}
if "reason" not in inspect.signature(torch.compiler.disable).parameters:
    _REASON = {}

untraced: Any = torch.compiler.disable  # what this decorates is run as it is, and breaks a graph


class Hook:
    """A hook of a module. A copy or a pickle of the module has one that does nothing; where torch.compile meets one, the graph breaks."""

    def __init__(self, run: Callable[..., None]) -> None:
        self._run = run

    @untraced(**_REASON)
    def __call__(self, *arguments: Any) -> None:
        self._run(*arguments)

    def __deepcopy__(self, memo: Dict[int, Any]) -> "Hook":
        return Hook(nothing)

    def __reduce__(self) -> Tuple[Any, ...]:
        return Hook, (nothing,)


def nothing(*_: Any) -> None:
    """What a hook does that does nothing."""


def after(wait: Callable[[], None], method: Callable[..., Any]) -> Callable[..., Any]:
    """This method, after ``wait()``."""

    @untraced
    @functools.wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        wait()
        return method(*arguments, **named)

    return call


def weakly(method: Callable[..., None], *given: Any) -> Callable[..., None]:
    """Calls this method, with what is ``given`` here, while its object lives, and does not keep it alive."""
    reference = weakref.WeakMethod(method)

    @untraced
    def call(*_: Any) -> None:
        found = reference()
        if found is not None:
            found(*given)

    return call


def is_compiled(module: nn.Module) -> bool:
    """Whether this module is torch.compile's, or was compiled in place."""
    return module._compiled_call_impl is not None or isinstance(module, torch._dynamo.OptimizedModule)


def hook_forward(module: nn.Module, run: Callable[..., None]) -> Any:
    """Run this before each forward of the module, and before what was hooked before; a handle whose ``remove()`` ends that."""
    if module._compiled_call_impl is not None:  # a pre-hook would be a part of the graph
        return _BeforeCompiled(module, run)
    return module.register_forward_pre_hook(Hook(run), prepend=True)


class _BeforeCompiled:
    """Runs something before each call of a module that was compiled in place."""

    def __init__(self, module: nn.Module, run: Callable[..., None]) -> None:
        self._module, self._hook = module, Hook(run)
        self._call = call = module._compiled_call_impl

        @functools.wraps(call)
        def compiled(*args: Any, **kwargs: Any) -> Any:
            self._hook()
            return call(*args, **kwargs)

        self._compiled = module._compiled_call_impl = compiled

    def remove(self) -> None:
        """It runs no longer. What was hooked after it, and is still there, stays."""
        self._hook = Hook(nothing)
        if self._module._compiled_call_impl is self._compiled:
            self._module._compiled_call_impl = self._call
