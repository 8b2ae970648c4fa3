"""How the gradients of a unit become their mean on all ranks: what the reducer starts and awaits. A strategy is a class of its own here.

Or half of the way: :class:`ToOwner` sums a unit up on one rank, :class:`FromOwner` brings the sum from there to the others. Both send
from rank to rank. Gloo's own collectives for this send more: of each byte of a unit, between two ranks, its all-reduce and its
reduce-scatter (which is an all-reduce) send 1.0 per rank, its reduce 0.75, its broadcast 0.5, and either class here 0.5. A unit of 1 KB
takes 0.47, 0.38, 0.28, 0.13 and 0.04 ms on two cores, as gloo hands each collective to a thread.
"""

from typing import Any, List, Optional, Protocol

import torch
import torch.distributed as dist
from torch.utils.weak import WeakIdKeyDictionary

ANY_ORDER = "gloo"  # the backend whose groups may have collectives under way in any order: each has connections and threads of its own
OUTSTANDING = 3  # collectives that are under way at a time
OUTSTANDING_HALVES = 8  # each travels in one direction only


def backend_for(device: torch.device, group: Optional[dist.ProcessGroup]) -> str:
    """The backend that carries a group's tensors on this device. ``dist.get_backend`` knows none if a group has one for each kind."""
    by_kind = dict(pair.split(":") for pair in dist.get_backend_config(group).split(","))
    return str(by_kind.get(device.type, dist.get_backend(group)))


class Strategy(Protocol):
    """What the reducer asks for, unit by unit.

    Contract:

    1. :meth:`start` is called in one thread, for the same units in the same order on all ranks, and does not wait for other ranks.
    2. :meth:`finish` is called in another thread, in the order of the starts, with what ``start`` returned. Later units may have started.
    3. Units of integers are summed exactly: they carry the ranks' answers.

    Attributes
    ----------
    scale : what each rank multiplies its gradients by on their way into a unit.
    share : of an all-reduce of the unit that this is, by the bytes on a link.
    """

    scale: float
    share: float

    def itemsize(self, dtype: torch.dtype) -> int:
        """Bytes that an element of a unit of this dtype has on the wire."""

    def start(self, unit: torch.Tensor) -> Any:
        """Start to reduce this flat tensor in place."""

    def finish(self, unit: torch.Tensor, work: Any) -> None:
        """Return when it holds the mean; on an accelerator, when this thread's stream waits for that."""


def payload(strategy: Strategy, unit: torch.Tensor) -> int:
    """Bytes of a unit on the wire, as those of an all-reduce are counted."""
    return int(unit.numel() * strategy.itemsize(unit.dtype) * strategy.share)


class AllReduce:
    """Every rank gets every sum, with the bits that the process group's all-reduce gives.

    ``group`` carries these collectives and nothing else meanwhile.
    """

    share = 1.0

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self._options = dist.AllreduceOptions()
        self._options.reduceOp = dist.ReduceOp.SUM
        self.scale = 1.0 / group.size()

    def itemsize(self, dtype: torch.dtype) -> int:
        """See :class:`Strategy`."""
        return dtype.itemsize

    def start(self, unit: torch.Tensor) -> Any:
        """See :class:`Strategy`."""
        carrier = self.carrier(unit)
        self.pack(unit, carrier)
        return carrier, self.group.allreduce([carrier], self._options)

    def finish(self, unit: torch.Tensor, work: Any) -> None:
        """See :class:`Strategy`."""
        carrier, started = work
        started.wait()
        self.unpack(unit, carrier)

    # -- what travels ------------------------------------------------------------------------------------------------------

    def carrier(self, unit: torch.Tensor) -> torch.Tensor:
        """The memory that travels for a unit, always the same. Only the thread that starts collectives asks for it."""
        return unit

    def pack(self, unit: torch.Tensor, carrier: torch.Tensor) -> None:
        """Write this rank's gradients into the carrier."""

    def unpack(self, unit: torch.Tensor, carrier: torch.Tensor) -> None:
        """Write their mean into the unit."""


class CompressedAllReduce(AllReduce):
    """Floating-point numbers travel as ``dtype``, and are summed as such: the bits of DistributedDataParallel's hooks for 16 bits.

    They are divided after the cast, as the hooks do it: a gradient that is small in fp16 has other bits the other way round.
    """

    def __init__(self, group: dist.ProcessGroup, dtype: torch.dtype) -> None:
        super().__init__(group)
        self.scale, self._ranks, self._dtype = 1.0, group.size(), dtype
        self._carriers: Any = WeakIdKeyDictionary()  # by unit

    def itemsize(self, dtype: torch.dtype) -> int:
        """See :class:`Strategy`."""
        return (self._dtype if dtype.is_floating_point else dtype).itemsize

    def carrier(self, unit: torch.Tensor) -> torch.Tensor:
        """See :class:`AllReduce`."""
        if not unit.is_floating_point() or unit.dtype == self._dtype:
            return unit
        carrier = self._carriers.get(unit)
        if carrier is None:
            self._carriers[unit] = carrier = torch.empty_like(unit, dtype=self._dtype)
        return carrier

    def pack(self, unit: torch.Tensor, carrier: torch.Tensor) -> None:
        """See :class:`AllReduce`."""
        if unit.is_floating_point():
            carrier.copy_(unit).div_(self._ranks)

    def unpack(self, unit: torch.Tensor, carrier: torch.Tensor) -> None:
        """See :class:`AllReduce`."""
        if carrier is not unit:
            unit.copy_(carrier)


class _Half:
    """What both halves of a unit have in common.

    ``whole`` says what travels for it, and through which group, whose backend is gloo. ``tag``: a number that no other half has, or has
    had.

    Gloo sends nothing before the receiver has asked for it, and to ask takes as long as any message. So receivers ask long before.
    """

    share = 0.5

    def __init__(self, whole: AllReduce, owner: int, tag: int) -> None:
        rank, ranks = whole.group.rank(), whole.group.size()
        self.scale = whole.scale
        self._whole, self._group, self._owner, self._tag = whole, whole.group, owner, tag
        self._owned = owner == rank
        self._others = [each for each in range(ranks) if each != rank]
        self._asked: List[Any] = []  # what is to be received

    def itemsize(self, dtype: torch.dtype) -> int:
        """See :class:`Strategy`."""
        return self._whole.itemsize(dtype)

    def finish(self, unit: torch.Tensor, work: Any) -> None:
        """See :class:`Strategy`."""
        carrier, works = work
        for each in works:
            each.wait()
        self._arrived(unit, carrier)

    def _arrived(self, unit: torch.Tensor, carrier: torch.Tensor) -> None:
        """What this rank had to send and receive for the half is over."""
        raise NotImplementedError

    def _received(self) -> List[Any]:
        """What was asked for, once."""
        asked, self._asked = self._asked, []
        return asked


class FromOwner(_Half):
    """The second half: the owner's mean is in the unit of every rank."""

    def ask(self, carrier: torch.Tensor) -> None:
        """On another rank than the owner: the carrier may be written from now on."""
        self._asked = [self._group.recv([carrier], self._owner, self._tag)]

    def start(self, unit: torch.Tensor) -> Any:
        """See :class:`Strategy`."""
        carrier = self._whole.carrier(unit)
        if self._owned:
            return carrier, [self._group.send([carrier], rank, self._tag) for rank in self._others]
        return carrier, self._received()

    def _arrived(self, unit: torch.Tensor, carrier: torch.Tensor) -> None:
        if not self._owned:
            self._whole.unpack(unit, carrier)


class ToOwner(_Half):
    """The first half: the owner's unit holds the mean, and other ranks ask for the ``second`` half."""

    def __init__(self, whole: AllReduce, owner: int, tag: int, second: FromOwner) -> None:
        super().__init__(whole, owner, tag)
        self._second = second
        self._parts: List[torch.Tensor] = []  # of the other ranks

    def _ask(self, carrier: torch.Tensor) -> None:
        self._parts = self._parts or [torch.empty_like(carrier) for _ in self._others]
        self._asked = [self._group.recv([part], rank, self._tag) for part, rank in zip(self._parts, self._others)]

    def start(self, unit: torch.Tensor) -> Any:
        """See :class:`Strategy`."""
        carrier = self._whole.carrier(unit)
        self._whole.pack(unit, carrier)
        if not self._owned:
            return carrier, [self._group.send([carrier], self._owner, self._tag)]
        if not self._asked:
            self._ask(carrier)
        return carrier, self._received()

    def _arrived(self, unit: torch.Tensor, carrier: torch.Tensor) -> None:
        if not self._owned:
            self._second.ask(carrier)
            return
        for part in self._parts:
            carrier.add_(part)
        self._ask(carrier)  # for the next round
        self._whole.unpack(unit, carrier)


class ToNext:
    """Brings a small tensor from one rank to the next one; the others have nothing to do. The backend of ``group`` is gloo."""

    scale, share = 1.0, 0.5

    def __init__(self, group: dist.ProcessGroup, rank: int) -> None:
        self._group, self._rank = group, rank

    def itemsize(self, dtype: torch.dtype) -> int:
        """See :class:`Strategy`."""
        return dtype.itemsize

    def start(self, unit: torch.Tensor) -> Any:
        """See :class:`Strategy`."""
        mine = self._group.rank()
        if mine == self._rank:
            return self._group.send([unit], mine + 1, self._rank)
        return self._group.recv([unit], mine - 1, self._rank) if mine == self._rank + 1 else None

    def finish(self, unit: torch.Tensor, work: Any) -> None:
        """See :class:`Strategy`."""
        if work is not None:
            work.wait()
