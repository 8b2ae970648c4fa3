"""For scripts that were written for Horovod, or for ByteScheduler on it: ``import prophet_mx.horovod as hvd``. Needs PyTorch, not Horovod.

What is here, and what differs, is in docs/from-horovod.md.
"""

from typing import Any

from .torch import horovod as _horovod
from .torch.horovod import (
    Adasum,
    Average,
    Compression,
    DistributedOptimizer,
    Max,
    Min,
    Product,
    ScheduledOptimizer,
    Sum,
    allgather,
    allgather_object,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async_,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
    gloo_built,
    grouped_allreduce,
    init,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    nccl_built,
    poll,
    rank,
    shutdown,
    size,
    synchronize,
)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "Product",
    "ScheduledOptimizer",
    "Sum",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "gloo_built",
    "grouped_allreduce",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "nccl_built",
    "poll",
    "rank",
    "shutdown",
    "size",
    "synchronize",
]


def __getattr__(name: str) -> Any:
    return getattr(_horovod, name)
