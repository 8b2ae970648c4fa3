"""What data-parallel scripts use of ``horovod.torch``, and of ``bytescheduler.pytorch.horovod``, over torch.distributed.

Gradients go by a ScheduledOptimizer. ``DistributedOptimizer`` is not told the model. So it sums them up during backward, and all updates
are done when ``step()`` returns, as with Horovod. ``ScheduledOptimizer`` knows the model: it updates parameters beside the next forward.

Horovod finds by name which tensors of the ranks belong together. Here, all ranks call the functions in the same order.
"""

import os
from contextlib import ExitStack, nullcontext
from typing import Any, Callable, ContextManager, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist
from torch import nn

from ..errors import ConfigError, not_allowed
from .optimizer import ScheduledOptimizer as _ScheduledOptimizer


class Op(NamedTuple):
    """How the tensors of the ranks become one."""

    name: str


Average, Sum, Min, Max, Product, Adasum = map(Op, ("Average", "Sum", "Min", "Max", "Product", "Adasum"))
_REDUCES = {"Average": "SUM", "Sum": "SUM", "Min": "MIN", "Max": "MAX", "Product": "PRODUCT"}


class Compression:
    """What gradients are on the wire: the type that they have, or 16 bits."""

    none, fp16 = "off", "fp16"


# -- processes -----------------------------------------------------------------------------------------------------------------------

# Of torchrun, and as others call them: Horovod's own launcher, Open MPI, MPICH and Slurm.
_VARIABLES = {
    "RANK": ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"),
    "WORLD_SIZE": ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"),
    "LOCAL_RANK": ("HOROVOD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"),
    "LOCAL_WORLD_SIZE": ("HOROVOD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"),
}


def init(*_: Any, **__: Any) -> None:
    """Join the other processes of the job: those of torchrun, those of mpirun, srun or horovodrun with ``MASTER_ADDR`` and ``MASTER_PORT``
    set, or none. Nothing happens if torch.distributed is initialised. Arguments are Horovod's, and have no effect.

    Raises
    ------
    ConfigError
        a launcher of MPI or Slurm has started this process, and nothing says where rank 0 is.
    """
    if is_initialized():
        return
    for name, others in _VARIABLES.items():
        found = next((os.environ[other] for other in others if other in os.environ), None)
        if found is not None:
            os.environ.setdefault(name, found)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 and "MASTER_ADDR" not in os.environ:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        return
    lacking = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if lacking:
        raise ConfigError(f"{' and '.join(lacking)} must say where rank 0 is; torchrun sets them, other launchers do not")
    dist.init_process_group(backend)


def shutdown() -> None:
    """Leave the job."""
    if is_initialized():
        dist.destroy_process_group()


def is_initialized() -> bool:
    """Whether this process has joined the others."""
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """This process's number, from 0."""
    return dist.get_rank()


def size() -> int:
    """How many processes there are."""
    return dist.get_world_size()


def local_rank() -> int:
    """This process's number among those of its machine: of the GPU that it uses."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def local_size() -> int:
    """How many processes this machine has."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def barrier() -> None:
    """Return when all ranks have called this."""
    dist.barrier()


def nccl_built() -> bool:
    """Whether tensors on GPUs go by NCCL."""
    return dist.is_nccl_available()


def gloo_built() -> bool:
    """Whether tensors on the processor go by gloo."""
    return dist.is_gloo_available()


def mpi_built() -> bool:
    """False: nothing goes by MPI."""
    return False


# -- tensors -------------------------------------------------------------------------------------------------------------------------


class Handle(NamedTuple):
    """A tensor that is under way: what ``*_async`` returns, and :func:`synchronize` takes."""

    work: Any
    finish: Callable[[], torch.Tensor]


def synchronize(handle: Handle) -> torch.Tensor:
    """Wait for a tensor, and return it."""
    handle.work.wait()
    return handle.finish()


def poll(handle: Handle) -> bool:
    """Whether :func:`synchronize` would return at once."""
    return bool(handle.work.is_completed())


def allreduce_async_(tensor: torch.Tensor, average: Optional[bool] = None, name: Optional[str] = None, op: Optional[Op] = None) -> Handle:
    """Begin to replace a tensor by the mean of all ranks' tensors, or by what ``op`` says. ConfigError for Adasum."""
    chosen = op or (Sum if average is False else Average)
    if chosen.name not in _REDUCES:
        raise ConfigError(not_allowed(f"op={chosen.name}", ", ".join(_REDUCES)))
    work = dist.all_reduce(tensor, getattr(dist.ReduceOp, _REDUCES[chosen.name]), async_op=True)

    def finish() -> torch.Tensor:
        if chosen is Average:
            tensor.div_(size()) if tensor.is_floating_point() or tensor.is_complex() else tensor.div_(size(), rounding_mode="trunc")
        return tensor

    return Handle(work, finish)


def allreduce_async(tensor: torch.Tensor, average: Optional[bool] = None, name: Optional[str] = None, op: Optional[Op] = None) -> Handle:
    """As :func:`allreduce_async_`, of a copy."""
    return allreduce_async_(tensor.detach().clone(), average, name, op)


def allreduce_(tensor: torch.Tensor, average: Optional[bool] = None, name: Optional[str] = None, op: Optional[Op] = None) -> torch.Tensor:
    """Replace a tensor by the mean of all ranks' tensors, or by what ``op`` says, and return it."""
    return synchronize(allreduce_async_(tensor, average, name, op))


def allreduce(
    tensor: torch.Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression: str = Compression.none,
    op: Optional[Op] = None,
) -> torch.Tensor:
    """The mean of all ranks' tensors, or what ``op`` says. With ``Compression.fp16`` it travels as 16 bits."""
    halved = compression != Compression.none and tensor.dtype in (torch.float32, torch.float64)
    sent = tensor.detach().to(torch.float16) if halved else tensor
    return synchronize(allreduce_async(sent, average, name, op)).to(tensor.dtype)


def grouped_allreduce(
    tensors: Sequence[torch.Tensor], average: Optional[bool] = None, name: Optional[str] = None, op: Optional[Op] = None
) -> List[torch.Tensor]:
    """:func:`allreduce` of several tensors at a time."""
    return [synchronize(handle) for handle in [allreduce_async(tensor, average, name, op) for tensor in tensors]]


def allgather(tensor: torch.Tensor, name: Optional[str] = None) -> torch.Tensor:
    """All ranks' tensors, joined along their first dimension, whose size may differ."""
    own = tensor.detach() if tensor.dim() else tensor.detach().reshape(1)
    lengths = [int(length) for length in allgather_object(own.shape[0])]
    padded = own.new_zeros((max(lengths), *own.shape[1:]))
    padded[: own.shape[0]] = own
    found = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(found, padded)
    return torch.cat([part[:length] for part, length in zip(found, lengths)])


def broadcast_async_(tensor: torch.Tensor, root_rank: int, name: Optional[str] = None) -> Handle:
    """Begin to replace a tensor by that of ``root_rank``."""
    return Handle(dist.broadcast(tensor, root_rank, async_op=True), lambda: tensor)


def broadcast_(tensor: torch.Tensor, root_rank: int, name: Optional[str] = None) -> torch.Tensor:
    """Replace a tensor by that of ``root_rank``, and return it."""
    return synchronize(broadcast_async_(tensor, root_rank, name))


def broadcast(tensor: torch.Tensor, root_rank: int, name: Optional[str] = None) -> torch.Tensor:
    """The tensor of ``root_rank``."""
    return broadcast_(tensor.detach().clone(), root_rank, name)


def broadcast_object(obj: Any, root_rank: int = 0, name: Optional[str] = None) -> Any:
    """The object of ``root_rank``, which can be pickled."""
    box = [obj]
    dist.broadcast_object_list(box, root_rank)
    return box[0]


def allgather_object(obj: Any, name: Optional[str] = None) -> List[Any]:
    """All ranks' objects, by rank."""
    box: List[Any] = [None] * size()
    dist.all_gather_object(box, obj)
    return box


def broadcast_parameters(params: Union[Mapping[str, Any], Iterable[Tuple[str, Any]]], root_rank: int) -> None:
    """Replace all tensors of ``state_dict()`` or ``named_parameters()`` by those of ``root_rank``."""
    with torch.no_grad():
        for _, value in sorted(params.items() if isinstance(params, Mapping) else params, key=lambda pair: pair[0]):
            if torch.is_tensor(value):
                found = broadcast(value.contiguous(), root_rank)
                value.data.copy_(found)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int) -> None:
    """Replace an optimizer's state and hyperparameters by those of ``root_rank``."""
    state = broadcast_object(optimizer.state_dict() if rank() == root_rank else None, root_rank)
    if rank() != root_rank:
        optimizer.load_state_dict(state)


# -- optimizers ----------------------------------------------------------------------------------------------------------------------


class _Holder(nn.Module):
    """Parameters of a model that is not known."""

    def __init__(self, named: Iterable[Tuple[str, nn.Parameter]]) -> None:
        super().__init__()
        for name, param in named:
            self.register_parameter(name.replace(".", "/"), param)


class DistributedOptimizer(_ScheduledOptimizer):
    """Sums up gradients over all ranks during backward, and updates by their mean in ``step()``, with the bits of DistributedDataParallel.

    Parameters
    ----------
    optimizer : any optimizer.
    named_parameters : names for messages.
    compression : ``Compression.fp16`` sends gradients as 16 bits.
    backward_passes_per_step : gradients of so many backward passes are added up before they are sent.
    op : ``Average``.

    Raises
    ------
    ConfigError
        another ``op``, a process set, or an argument with which results would be others; or as of
        :class:`~prophet_mx.torch.ScheduledOptimizer`.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Optional[Iterable[Tuple[str, nn.Parameter]]] = None,
        compression: str = Compression.none,
        backward_passes_per_step: int = 1,
        op: Op = Average,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Any = None,
        sparse_as_dense: bool = False,
        process_set: Any = None,
        **settings: Any,
    ) -> None:
        for name, value, allowed in (
            ("op", op.name, "Average"),
            ("gradient_predivide_factor", gradient_predivide_factor, 1.0),
            ("process_set", process_set, None),
        ):
            if value != allowed:
                raise ConfigError(not_allowed(f"{name}={value}", str(allowed)))
        if backward_passes_per_step < 1:
            raise ConfigError(not_allowed(f"backward_passes_per_step={backward_passes_per_step}", "a whole number from 1"))
        if compression not in (Compression.none, Compression.fp16):
            raise ConfigError(not_allowed(f"compression={compression!r}", "Compression.none, Compression.fp16"))
        names = {id(param): name for name, param in named_parameters or ()}
        params = [param for group in optimizer.param_groups for param in group["params"] if param.requires_grad]
        holder = _Holder((names.get(id(param), f"parameter {number}"), param) for number, param in enumerate(params))
        if compression != Compression.none:
            settings["compress"] = compression
        self._settings = settings
        super().__init__(holder, optimizer, find_unused_parameters=True, **settings)
        self._passes = _Passes(self, params, backward_passes_per_step) if backward_passes_per_step > 1 else None

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:  # type: ignore[override]
        """Update all parameters that have gradients. All updates are done when it returns."""
        loss = super().step(closure)
        self._await_updates()
        if self._passes is not None:
            self._passes.begin()
        return loss

    def skip_synchronize(self) -> ContextManager[None]:
        """For ``step()`` after :meth:`synchronize`, as with Horovod. It changes nothing, as nothing is summed up twice."""
        return nullcontext()

    def close(self) -> None:
        """As of :class:`~prophet_mx.torch.ScheduledOptimizer`."""
        if self._passes is not None:
            self._passes.close()
        super().close()


class _Passes:
    """Lets gradients go in the last of several backward passes only. Until then they are added up here."""

    def __init__(self, optimizer: DistributedOptimizer, params: Sequence[nn.Parameter], number: int) -> None:
        self._optimizer, self._number = optimizer, number
        self._done, self._within = 0, False
        self._waiting = ExitStack()
        self._handles = [param.register_hook(self._reached) for param in params]
        self.begin()

    def begin(self) -> None:
        """An iteration begins."""
        self._waiting.close()
        self._done = 0
        self._waiting.enter_context(self._optimizer.no_sync())

    def close(self) -> None:
        self._waiting.close()
        for handle in self._handles:
            handle.remove()

    def _reached(self, grad: torch.Tensor) -> None:
        """Backward is about to add a gradient: in autograd's thread."""
        if self._within:
            return
        self._within = True
        torch.autograd.Variable._execution_engine.queue_callback(self._ended)  # type: ignore[attr-defined]
        if self._done + 1 == self._number:
            self._waiting.close()

    def _ended(self) -> None:
        self._done, self._within = self._done + 1, False


def ScheduledOptimizer(model: nn.Module, optimizer: torch.optim.Optimizer, num_steps: int = 0) -> _ScheduledOptimizer:  # noqa: N802
    """ByteScheduler's name: with the model, gradients travel in the order in which its next forward needs them.

    Parameters
    ----------
    model : that the optimizer trains.
    optimizer : a :class:`DistributedOptimizer`, or any other.
    num_steps : ByteScheduler's, without effect: there is nothing to end after so many steps.
    """
    settings: Dict[str, Any] = {}
    if isinstance(optimizer, DistributedOptimizer):
        if optimizer._passes is not None:
            raise ConfigError("backward_passes_per_step of an optimizer for ScheduledOptimizer is not allowed; allowed: 1, and no_sync()")
        settings = optimizer._settings
        optimizer.close()
        optimizer = optimizer.optimizer
    return _ScheduledOptimizer(model, optimizer, **settings)


_REFUSED = {
    "join": "ranks with less data end the job for all; give all ranks the same number of batches",
    "elastic": "a job that lost a process starts again: torchrun --max-restarts",
    "ProcessSet": "torch.distributed.new_group() makes groups of ranks",
    "add_process_set": "torch.distributed.new_group() makes groups of ranks",
    "alltoall": "torch.distributed.all_to_all() does that",
    "SyncBatchNorm": "torch.nn.SyncBatchNorm.convert_sync_batchnorm() does that",
    "run": "torchrun starts jobs",
}


def __getattr__(name: str) -> Any:
    if name in _REFUSED:
        raise AttributeError(f"prophet_mx.horovod has no {name}: {_REFUSED[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
