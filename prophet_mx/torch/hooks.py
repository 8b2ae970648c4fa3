"""Hooks that run our code before a module's forward, or after a gradient: in copies, in pickles, and where torch.compile meets them."""

import functools
import inspect
from typing import Any, Callable, Dict, Tuple

import torch
from torch import nn

# PyTorch shows it where fullgraph=True forbids the break.
_REASON: Dict[str, Any] = {"reason": "with fullgraph=True, compile the model before ScheduledOptimizer(model, optimizer)"}
if "reason" not in inspect.signature(torch.compiler.disable).parameters:
    _REASON = {}


class Hook:
    """A hook of a module. A copy or a pickle of the module has one that does nothing; where torch.compile meets one, the graph breaks."""

    def __init__(self, run: Callable[..., None]) -> None:
        self._run = run
        self._run_uncompiled = torch.compiler.disable(run, **_REASON)

    def __call__(self, *arguments: Any) -> None:
        if torch.compiler.is_compiling():
            self._run_uncompiled(*arguments)
        else:
            self._run(*arguments)

    def __deepcopy__(self, memo: Dict[int, Any]) -> "Hook":
        return Hook(_nothing)

    def __reduce__(self) -> Tuple[Any, ...]:
        return Hook, (_nothing,)


def _nothing(*_: Any) -> None:
    pass


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
        self._hook = Hook(_nothing)
        if self._module._compiled_call_impl is self._compiled:
            self._module._compiled_call_impl = self._call
