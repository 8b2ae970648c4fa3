"""What cannot be scheduled with exactly the result of DistributedDataParallel is refused here, before anything is changed."""

from dataclasses import fields
from itertools import chain
from typing import Any, Dict, List, Mapping, Optional, Set, Tuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..config import PREFIX, PYTORCH_POLICIES, SERVERS_ONLY, Config, shown
from ..errors import CollectiveError, ConfigError, not_allowed
from ..policies import OFF
from .guards import GuardedParameter, is_tracked
from .replicated import state_of
from .strategies import ANY_ORDER

# Optimizers whose step treats each parameter by itself: those of torch.optim, and others by module and name, as their sources show.
LAZY = frozenset(
    getattr(torch.optim, name)
    for name in ("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "Adagrad", "Adadelta", "ASGD", "Adafactor", "Muon")
    if hasattr(torch.optim, name)
)
LAZY_NAMES = frozenset([("lion_pytorch.lion_pytorch", "Lion"), ("timm.optim.lion", "Lion"), ("transformers.optimization", "Adafactor")])

# What a class that is derived from one of these may replace, and still treat each parameter by itself. What it adds is free.
FREE = frozenset(
    ["__init__", "__repr__", "__doc__", "__module__", "__qualname__", "__annotations__", "__dict__", "__weakref__", "__static_attributes__"]
    + ["__firstlineno__", "__annotate__", "__annotate_func__", "__annotations_cache__"]
    + ["__getstate__", "__setstate__", "state_dict", "load_state_dict", "add_param_group"]
)

# Optimizers in which a framework has put the user's, by name: they decide whether a step is one, so ours has to be inside.
WRAPPERS = {
    "AcceleratedOptimizer": "prophet_mx.torch.integrations.schedule(model, optimizer), which schedules the optimizer inside it",
    "LightningOptimizer": "the optimizer that configure_optimizers() makes, or Trainer(strategy=ScheduledStrategy())",
}

# For a model whose parameters are split among the ranks.
WHOLE = (
    "allowed: a model that each rank has as a whole, with DistributedDataParallel or alone. Train a sharded model with the model's own "
    "optimizer, without ScheduledOptimizer"
)


def check_settings(settings: Mapping[str, Any], environ: Mapping[str, str]) -> None:
    """Raise ConfigError if a keyword or a ``PROPHET_`` variable is given that would have no effect here."""
    given = {name: value for name, value in settings.items() if name in SERVERS_ONLY}
    for name in SERVERS_ONLY:
        text = environ.get(PREFIX + name.upper(), "").strip()
        if text and name not in given:
            given[PREFIX + name.upper()] = text
    for name, value in given.items():
        allowed = ", ".join(field.name for field in fields(Config) if field.name not in SERVERS_ONLY)
        raise ConfigError(f"{name}={shown(value)} is not allowed for PyTorch, where it has no effect; the settings there are {allowed}")


def steps_lazily(optimizer: torch.optim.Optimizer) -> bool:
    """Whether this optimizer may be run for some parameters now and for others later."""
    kind = type(optimizer)
    known = next((each for each in kind.__mro__ if each in LAZY or (each.__module__, each.__name__) in LAZY_NAMES), None)
    return (
        known is not None
        and not any(_changes(each, known) for each in kind.__mro__[: kind.__mro__.index(known)])
        and not any(hasattr(kind, name) for name in vars(optimizer) if name != "step")
        and (vars(optimizer).get("step") is None or hasattr(vars(optimizer)["step"], "_wrapped_by_lr_sched"))
        and not any(group.get("differentiable") for group in optimizer.param_groups)
    )


def _changes(kind: type, known: type) -> bool:
    """Whether a class that is derived from a known one replaces any of its functions. PyTorch wraps ``step`` where it is called first."""
    names = [name for name in vars(kind) if name not in FREE and hasattr(known, name)]
    wrapped = getattr(vars(kind).get("step"), "hooked", False) and step_without_hooks(kind) is step_without_hooks(known)
    return bool([name for name in names if not (name == "step" and wrapped)])


def step_without_hooks(kind: type) -> Any:
    """The class's own ``step``. PyTorch wraps it in one that runs the hooks of a step."""
    step: Any = kind.step  # type: ignore[attr-defined]
    while getattr(step, "hooked", False):
        step = step.__wrapped__
    return step


def check(
    model: nn.Module,
    ddp: Optional[DistributedDataParallel],
    optimizer: torch.optim.Optimizer,
    named: List[Tuple[str, nn.Parameter]],
    config: Config,
    again: bool = False,
) -> None:
    """Raise ConfigError if this model, optimizer or setting cannot be scheduled. ``ddp`` reduces the model's gradients now. ``again``: the
    model is scheduled, with another optimizer."""
    if config.policy not in PYTORCH_POLICIES:
        raise ConfigError(not_allowed(f"policy={config.policy!r}", f"one of {', '.join(PYTORCH_POLICIES)}", " for PyTorch"))
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model is a {type(model).__name__}; allowed: a torch.nn.Module")
    if not isinstance(optimizer, torch.optim.Optimizer):
        several = ", each of several by itself, with the same model" if isinstance(optimizer, (list, tuple)) else ""
        raise ConfigError(f"optimizer is a {type(optimizer).__name__}; allowed: a torch.optim.Optimizer{several}")
    for kind in type(optimizer).__mro__:
        if kind.__name__ in WRAPPERS:
            raise ConfigError(f"optimizer is a framework's {kind.__name__}; allowed: {WRAPPERS[kind.__name__]}")
    if isinstance(optimizer, (torch.optim.LBFGS, torch.optim.SparseAdam)):
        raise ConfigError(
            f"optimizer is {type(optimizer).__name__}, which cannot be scheduled; allowed: one that takes one gradient a step"
        )
    if not hasattr(optimizer, "_optimizer_step_pre_hooks"):  # PyTorch's own step() fails without them, after zero_grad()
        raise ConfigError(f"optimizer is a {type(optimizer).__name__} that has not called Optimizer.__init__(); allowed: one that has")
    if not named:
        raise ConfigError("model has no parameter that requires a gradient")
    _check_parameters(model, optimizer, named, config, again)
    if ddp is None or config.policy != OFF:
        _check_memory(model.module if ddp is model else model, named)
    if ddp is not None:
        check_ddp(ddp)


def _check_parameters(
    model: nn.Module, optimizer: torch.optim.Optimizer, named: List[Tuple[str, nn.Parameter]], config: Config, again: bool
) -> None:
    mine = {id(param) for _, param in named}
    for name, param in named:
        if is_tracked(param) and not again:
            raise ConfigError(
                f"parameter {name!r} is already scheduled, with a model that has others; allowed: the same model for each of its "
                "optimizers, until close()"
            )
        if type(param).__name__ == "DTensor":
            raise ConfigError(f"parameter {name!r} is a DTensor, as of fully_shard(), HSDP and tensor parallelism; {WHOLE}")
        if not isinstance(param, GuardedParameter) and type(param) is not nn.Parameter:
            raise ConfigError(f"parameter {name!r} is a {type(param).__name__}; allowed: a plain torch.nn.Parameter")
        if param.layout is not torch.strided:
            raise ConfigError(f"parameter {name!r} is sparse; allowed: dense parameters")
        if config.compress is not None and param.is_complex():
            raise ConfigError(f"parameter {name!r} is complex, and compress={config.compress!r}; allowed: real numbers, or compress='off'")
    check_groups(optimizer)
    for group in optimizer.param_groups:
        for param in group["params"]:
            if not param.requires_grad or id(param) in mine:
                continue
            for name, each in model.module.named_parameters() if isinstance(model, DistributedDataParallel) else ():
                if each is param:
                    raise ConfigError(
                        f"optimizer has {name!r}, which the DistributedDataParallel was told to ignore: nothing reduces its gradient; "
                        "allowed: an optimizer of its own"
                    )
            raise ConfigError(
                f"optimizer has a parameter of shape {tuple(param.shape)} that is not one of the model's; allowed: those of the model"
            )
    refuse_within(model)
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise ConfigError(f"module {name!r} is a ScriptModule, which reads its parameters unseen; allowed: modules in Python")


def _check_memory(model: nn.Module, named: List[Tuple[str, nn.Parameter]]) -> None:
    """Raise ConfigError if a parameter of ``named`` shares memory with another one, or with a buffer: who uses that one does not wait for
    the update of the first, and two updates of one memory have an order."""
    mine = {id(param) for _, param in named}
    ranges = []
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        known = type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout is torch.strided and tensor.device.type != "meta"
        if known and tensor.numel():
            span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
            begin = tensor.data_ptr()
            # Elements of two with holes may lie between each other's: these are told apart by their beginnings alone.
            end = begin + tensor.element_size() * (span if span == tensor.numel() else 1)
            ranges.append((str(tensor.device), begin, end, name, id(tensor) in mine))
    reaching: Dict[Tuple[str, bool], Tuple[int, str]] = {}  # by device, and whether it is one of mine: the end furthest on, and whose it is
    for device, begin, end, name, one_of_mine in sorted(ranges):
        for other in (False, True) if one_of_mine else (True,):
            reached, whose = reaching.get((device, other), (0, ""))
            if begin < reached:
                raise ConfigError(
                    f"{whose!r} and {name!r} of the model share memory, but are two tensors; allowed: the same nn.Parameter in both "
                    "places, or memory of their own"
                )
        reaching[device, one_of_mine] = max(reaching.get((device, one_of_mine), (0, "")), (end, name))


def check_order(model: nn.Module, backend: str, others: bool) -> None:
    """Raise ConfigError if collectives of other groups would be under way beside those of gradients, and the backend, as NCCL, needs one
    order of both. ``others``: another model is scheduled in this process."""
    if backend == ANY_ORDER:
        return
    if others:
        raise ConfigError(f"another ScheduledOptimizer is open, and {backend} needs one order of all collectives; allowed: one at a time")
    for name, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            raise ConfigError(
                f"module {name!r} is a SyncBatchNorm, whose collectives have no common order with those of gradients, and {backend} needs "
                "one; allowed: BatchNorm, or policy='off'"
            )


def check_groups(optimizer: torch.optim.Optimizer) -> None:
    """Raise ConfigError if a parameter is in the optimizer's groups twice: PyTorch updates it twice in each step."""
    seen: Set[int] = set()
    for index, group in enumerate(optimizer.param_groups):
        for param in group["params"]:
            if id(param) in seen:
                what = f"a parameter of shape {tuple(param.shape)}"
                raise ConfigError(f"group {index} of the optimizer has {what} a second time; allowed: each parameter once")
            seen.add(id(param))


def check_ddp(model: DistributedDataParallel) -> None:
    """Raise ConfigError if this one does something to gradients that a schedule would leave out."""
    if getattr(model, "mixed_precision", None) is not None:
        raise ConfigError("model is a DistributedDataParallel with mixed_precision; allowed: one without (use torch.autocast)")
    if getattr(model, "_use_python_reducer", False):
        raise ConfigError("model is a DistributedDataParallel with optimize_ddp='python_reducer'; allowed: one without")


def refuse_gradient(name: str, gradient: torch.Tensor) -> None:
    """Raise CollectiveError for a gradient of this parameter that cannot be sent."""
    if gradient.layout is not torch.strided:
        raise CollectiveError(f"parameter {name!r} has a sparse gradient, which cannot be scheduled; use sparse=False")
    raise CollectiveError("backward(create_graph=True) cannot be scheduled; torch.autograd.grad(..., create_graph=True) can")


def refuse_unseen(name: str) -> None:
    """Raise CollectiveError for a gradient of this parameter, which nobody was seen to use."""
    raise CollectiveError(
        f"parameter {name!r} has a gradient, but no use of it was seen since the last step(): C++ code has read it, or backward ran again "
        "through a graph from before step(). Its value may have been an old one: end this run"
    )


def refuse_within(model: nn.Module) -> None:
    """Raise ConfigError if a part of the model is a DistributedDataParallel, which reduces its gradients as well, or if it is sharded."""
    for name, module in model.named_modules():
        if any(kind.__name__ == "FullyShardedDataParallel" for kind in type(module).__mro__):  # with plain parameters, perhaps
            raise ConfigError(f"module {name!r} is a FullyShardedDataParallel; {WHOLE}")
        if module is not model and isinstance(module, DistributedDataParallel):
            raise ConfigError(f"module {name!r} is a DistributedDataParallel, which reduces by itself; allowed: one around the whole model")
        if module is not model and state_of(module) is not None:
            raise ConfigError(
                f"replicate() was applied to module {name!r}, which reduces by itself; allowed: replicate() of the whole model"
            )
