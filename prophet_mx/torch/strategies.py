"""How the gradients of a unit become their mean on all ranks: what the reducer starts and awaits. A strategy is a class of its own here."""

from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.utils.weak import WeakIdKeyDictionary

OUTSTANDING = 3  # collectives that are under way at a time


class Strategy(Protocol):
    """What the reducer asks for, unit by unit.

    Contract:

    1. :meth:`start` is called in one thread, for the same units in the same order on all ranks, and does not wait for other ranks.
    2. :meth:`finish` is called in another thread, in the order of the starts, with what ``start`` returned. Later units may have started.
    3. Units of integers are summed exactly: they carry the ranks' answers.

    Attribute ``scale``: what each rank multiplies its gradients by on their way into a unit.
    """

    scale: float

    def itemsize(self, dtype: torch.dtype) -> int:
        """Bytes that an element of a unit of this dtype has on the wire."""

    def start(self, unit: torch.Tensor) -> Any:
        """Start to reduce this flat tensor in place."""

    def finish(self, unit: torch.Tensor, work: Any) -> None:
        """Return when it holds the mean; on an accelerator, when this thread's stream waits for that."""


class AllReduce:
    """Every rank gets every sum, with the bits that the process group's all-reduce gives.

    ``group`` carries these collectives and nothing else meanwhile.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._options = dist.AllreduceOptions()
        self._options.reduceOp = dist.ReduceOp.SUM
        self.scale = 1.0 / group.size()

    def itemsize(self, dtype: torch.dtype) -> int:
        """See :class:`Strategy`."""
        return dtype.itemsize

    def start(self, unit: torch.Tensor) -> Any:
        """See :class:`Strategy`."""
        return self._group.allreduce([unit], self._options)

    def finish(self, unit: torch.Tensor, work: Any) -> None:
        """See :class:`Strategy`."""
        work.wait()


class CompressedAllReduce(AllReduce):
    """Floating-point numbers travel as ``dtype``, and are summed as such: the bits of DistributedDataParallel's hooks for 16 bits.

    They are divided after the cast, as the hooks do it: a gradient that is small in fp16 has other bits the other way round.
    """

    def __init__(self, group: dist.ProcessGroup, dtype: torch.dtype) -> None:
        super().__init__(group)
        self.scale, self._ranks, self._dtype = 1.0, group.size(), dtype
        self._carriers: Any = WeakIdKeyDictionary()  # by unit: what travels. Only the thread that starts collectives asks for it

    def itemsize(self, dtype: torch.dtype) -> int:
        """See :class:`Strategy`."""
        return (self._dtype if dtype.is_floating_point else dtype).itemsize

    def start(self, unit: torch.Tensor) -> Any:
        """See :class:`Strategy`."""
        if not unit.is_floating_point():
            return unit, super().start(unit)
        carrier = unit if unit.dtype == self._dtype else self._carriers.get(unit)
        if carrier is None:
            self._carriers[unit] = carrier = torch.empty_like(unit, dtype=self._dtype)
        carrier.copy_(unit).div_(self._ranks)
        return carrier, super().start(carrier)

    def finish(self, unit: torch.Tensor, work: Any) -> None:
        """See :class:`Strategy`."""
        carrier, started = work
        super().finish(carrier, started)
        if carrier is not unit:
            unit.copy_(carrier)
