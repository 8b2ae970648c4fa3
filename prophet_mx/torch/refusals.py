"""What cannot be scheduled with exactly the result of DistributedDataParallel is refused here, before anything is changed."""

from dataclasses import fields
from typing import Any, List, Mapping, Set, Tuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..config import PREFIX, Config, shown
from ..errors import ConfigError, not_allowed
from ..policies import DEFAULT, OFF
from .guards import is_tracked

POLICIES = (DEFAULT, OFF)

# Optimizers of torch.optim whose step treats each parameter by itself: their classes themselves, not what is derived from them.
LAZY = frozenset(
    getattr(torch.optim, name)
    for name in ("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "Adagrad", "Adadelta", "ASGD")
    if hasattr(torch.optim, name)
)

# Settings of the traffic to servers, of which there are none here.
WITHOUT_MEANING = ("drain", "bandwidth", "message_cost", "window", "lead")


def check_settings(settings: Mapping[str, Any], environ: Mapping[str, str]) -> None:
    """Raise ConfigError if a keyword or a ``PROPHET_`` variable is given that would have no effect here."""
    given = {name: value for name, value in settings.items() if name in WITHOUT_MEANING}
    for name in WITHOUT_MEANING:
        text = environ.get(PREFIX + name.upper(), "").strip()
        if text and name not in given:
            given[PREFIX + name.upper()] = text
    for name, value in given.items():
        allowed = ", ".join(field.name for field in fields(Config) if field.name not in WITHOUT_MEANING)
        raise ConfigError(f"{name}={shown(value)} is not allowed for PyTorch, where it has no effect; the settings there are {allowed}")


def steps_lazily(optimizer: torch.optim.Optimizer) -> bool:
    """Whether this optimizer may be run for some parameters now and for others later."""
    step = vars(optimizer).get("step")
    replaced = step is not None and not hasattr(step, "_wrapped_by_lr_sched")
    return type(optimizer) in LAZY and not replaced and not any(group.get("differentiable") for group in optimizer.param_groups)


def check(model: nn.Module, optimizer: torch.optim.Optimizer, named: List[Tuple[str, nn.Parameter]], config: Config) -> None:
    """Raise ConfigError if this model, optimizer or setting cannot be scheduled."""
    if config.policy not in POLICIES:
        raise ConfigError(not_allowed(f"policy={config.policy!r}", f"one of {', '.join(POLICIES)}", " for PyTorch"))
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model is a {type(model).__name__}; allowed: a torch.nn.Module")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(f"optimizer is a {type(optimizer).__name__}; allowed: a torch.optim.Optimizer")
    if isinstance(optimizer, (torch.optim.LBFGS, torch.optim.SparseAdam)):
        raise ConfigError(
            f"optimizer is {type(optimizer).__name__}, which cannot be scheduled; allowed: one that takes one gradient a step"
        )
    if not named:
        raise ConfigError("model has no parameter that requires a gradient")
    _check_parameters(model, optimizer, named)
    if isinstance(model, DistributedDataParallel):
        _check_ddp(model)


def _check_parameters(model: nn.Module, optimizer: torch.optim.Optimizer, named: List[Tuple[str, nn.Parameter]]) -> None:
    mine = {id(param) for _, param in named}
    for name, param in named:
        if is_tracked(param):
            raise ConfigError(f"parameter {name!r} is already scheduled; allowed: one ScheduledOptimizer for a model, until it is closed")
        if type(param) is not nn.Parameter:
            raise ConfigError(f"parameter {name!r} is a {type(param).__name__}; allowed: a plain torch.nn.Parameter")
        if param.layout is not torch.strided:
            raise ConfigError(f"parameter {name!r} is sparse; allowed: dense parameters")
    check_groups(optimizer)
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.requires_grad and id(param) not in mine:
                raise ConfigError(
                    f"optimizer has a parameter of shape {tuple(param.shape)} that is not one of the model's; allowed: those of the model"
                )
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise ConfigError(f"module {name!r} is a ScriptModule, which reads its parameters unseen; allowed: modules in Python")


def check_groups(optimizer: torch.optim.Optimizer) -> None:
    """Raise ConfigError if a parameter is in the optimizer's groups twice: PyTorch updates it twice in each step."""
    seen: Set[int] = set()
    for index, group in enumerate(optimizer.param_groups):
        for param in group["params"]:
            if id(param) in seen:
                what = f"a parameter of shape {tuple(param.shape)}"
                raise ConfigError(f"group {index} of the optimizer has {what} a second time; allowed: each parameter once")
            seen.add(id(param))


def _check_ddp(model: DistributedDataParallel) -> None:
    if getattr(model, "mixed_precision", None) is not None:
        raise ConfigError("model is a DistributedDataParallel with mixed_precision; allowed: one without (use torch.autocast)")
    if getattr(model, "_comm_hooks", None):
        raise ConfigError("model is a DistributedDataParallel with a communication hook; allowed: one without")
