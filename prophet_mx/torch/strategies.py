"""How the gradients of a unit become their mean on all ranks: what the reducer starts and awaits. A strategy is a class of its own here."""

from typing import Any, Protocol

import torch
import torch.distributed as dist

OUTSTANDING = 3  # collectives that are under way at a time


class Strategy(Protocol):
    """What the reducer asks for, unit by unit.

    Contract:

    1. :meth:`start` is called in one thread, for the same units in the same order on all ranks, and does not wait for other ranks.
    2. :meth:`finish` is called in another thread, in the order of the starts, with what ``start`` returned. Later units may have started.
    3. Units of integers are summed exactly: they carry the ranks' answers.

    Attribute ``scale``: what each rank multiplies its gradients by on their way into a unit, so that their sum is their mean.
    """

    scale: float

    def start(self, unit: torch.Tensor) -> Any:
        """Start to reduce this flat tensor in place."""

    def finish(self, unit: torch.Tensor, work: Any) -> None:
        """Return when it holds the sum; on an accelerator, when this thread's stream waits for that."""


class AllReduce:
    """Every rank gets every sum, with the bits that the process group's all-reduce gives.

    ``group`` carries these collectives and nothing else meanwhile.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._options = dist.AllreduceOptions()
        self._options.reduceOp = dist.ReduceOp.SUM
        self.scale = 1.0 / group.size()

    def start(self, unit: torch.Tensor) -> Any:
        """See :class:`Strategy`."""
        return self._group.allreduce([unit], self._options)

    def finish(self, unit: torch.Tensor, work: Any) -> None:
        """See :class:`Strategy`."""
        work.wait()
