"""The 2-norms of all gradients in a round in halves: owners compute them, and an exchange tells them to all ranks.

So ``clip_grad_norm_`` runs before most sums are there: it gets each gradient's norm, with the bits that it would compute itself.

Of a *divided* gradient each rank owns a part. It adds the squares of its part to what the rank before has added up, and the last rank has
the norm. The order of these additions is that of PyTorch's function on one processor (``_core``), which :func:`divisible` looks at first.
"""

from typing import Any, Dict, List, NamedTuple, Sequence

import numpy as np
import torch
import torch.distributed as dist

from .._core import SUMS, add_squares
from ..planning.rounds import RoundPlan
from .strategies import AllReduce, Strategy, ToNext
from .tracked import Tracked

TRIED = (5, 4_003, 100_007)  # elements


def divisible() -> bool:
    """Whether the norm of a gradient in parts is that of the whole here, bit for bit. It is not where vectors have another size."""
    numbers = torch.Generator().manual_seed(1)
    return all(_same(torch.randn(count, generator=numbers, dtype=torch.float32, device="cpu")) for count in TRIED)


def has_parts(gradient: torch.Tensor) -> bool:
    """Whether a gradient like this one can be divided, where any can."""
    return gradient.dtype == torch.float32 and gradient.is_contiguous()


def _same(whole: torch.Tensor) -> bool:
    sums, count = np.zeros(SUMS, np.float32), len(whole)
    for start, stop in ((0, count // 3), (count // 3, count)):
        add_squares(whole[start:stop].numpy(), start, count, sums)
    return _norm(sums) == float(torch.linalg.vector_norm(whole, 2.0))


def _norm(sums: Any) -> float:
    total = np.float32(0.0)
    for each in sums:  # one after the other
        total += each
    return float(np.sqrt(total))


class _Part(NamedTuple):
    """Of a gradient: who owns it, its first element, and its memory."""

    owner: int
    first: int
    memory: torch.Tensor


class Norms:
    """Of the gradients of one optimizer, in the round under way.

    They are found in *steps*: in step k rank k tells the next rank what it has added up of divided gradients, and the last step is the
    exchange. Each is a unit for the reducer, which takes the steps in their order. The methods that return steps say which may go now.
    :meth:`begin` is called when all steps of the round before are over, the others in the landing thread, with the guards off.

    Parameters
    ----------
    plan, ranges : of the round, and the memory of each of its units.
    elements : of each gradient.
    group : of gloo, for the steps alone.

    Attributes
    ----------
    units, strategies : of the steps. In the exchange numbers of 64 bits have room for any norm, and zeros of other ranks change none.
    there : whether no step is to come or under way.
    """

    def __init__(self, plan: RoundPlan, ranges: Sequence[torch.Tensor], elements: Sequence[int], group: dist.ProcessGroup) -> None:
        self._rank, ranks = group.rank(), group.size()
        parts: List[List[_Part]] = [[] for _ in elements]
        for unit, owner, memory in zip(plan.units, plan.owners, ranges):
            for index, start, _ in unit.slices:
                if owner is not None:
                    parts[index].append(_Part(owner, start, memory))
        owners = [{part.owner for part in some} for some in parts]
        self._divided = {index: elements[index] for index, some in enumerate(owners) if len(some) > 1}
        self._parts = {index: [part for part in parts[index] if part.owner == self._rank] for index in self._divided}
        self._last = ranks - 1 if self._divided else 0  # the last step
        # One rank is to tell the norm of a gradient that all ranks have.
        tells = [self._last if index in self._divided else min(some, default=index % ranks) for index, some in enumerate(owners)]
        self._whole = {index for index, rank in enumerate(tells) if rank == self._rank and index not in self._divided}
        self._mine = tells.count(self._rank)  # the norms that this rank tells
        sums = [torch.zeros(len(self._divided), SUMS, dtype=torch.float32, device="cpu") for _ in range(self._last)]
        self.units: List[torch.Tensor] = [*sums, torch.zeros(len(elements), dtype=torch.float64, device="cpu")]
        self.strategies: List[Strategy] = [*(ToNext(group, rank) for rank in range(self._last)), AllReduce(group)]
        self._known: Dict[int, float] = {}
        self._summed = 0  # divided gradients with the sums of all parts on this rank
        self._told = False  # what the ranks before have added up is there
        self._all: List[float] = []
        self.there = True

    def begin(self) -> List[int]:
        """A round begins. The lock is held."""
        self.there = False
        self._summed, self._told = 0, self._rank == 0
        if not self._mine:
            self.units[-1].zero_()  # it has the sums of that exchange, and nothing else is written into it
        others = [step for step in range(self._last) if step != self._rank]
        return others + self._add_squares() + [self._last] * (not self._mine)

    def note(self, tracked: Tracked) -> List[int]:
        """The sum of this gradient, or of its parts on this rank, is there."""
        if tracked.index in self._divided:
            self._summed += 1
            return self._add_squares()
        if tracked.index not in self._whole:
            return []
        return self._found({tracked.index: float(torch.linalg.vector_norm(tracked.view, 2.0))})

    def landed(self, step: int) -> List[int]:
        """This step is over."""
        if step == self._last:
            self._all = self.units[-1].tolist()
            self.there = True
        elif step == self._rank - 1:
            self._told = True
            return self._add_squares()
        return []

    def of(self, tracked: Tracked) -> torch.Tensor:
        """The norm of its gradient, once :attr:`there`."""
        return torch.tensor(self._all[tracked.index], dtype=tracked.view.dtype)

    def _add_squares(self) -> List[int]:
        """Go on with the divided gradients, if all that it takes is there."""
        if not self._divided or not self._told or self._summed < sum(map(bool, self._parts.values())):
            return []
        sums = self.units[self._rank - 1].numpy().copy() if self._rank else np.zeros((len(self._divided), SUMS), np.float32)
        for (index, elements), total in zip(self._divided.items(), sums):
            for part in self._parts[index]:
                add_squares(part.memory.numpy(), part.first, elements, total)
        if self._rank < self._last:
            self.units[self._rank].copy_(torch.from_numpy(sums))
            return [self._rank]
        return self._found({index: _norm(total) for index, total in zip(self._divided, sums)})

    def _found(self, norms: Dict[int, float]) -> List[int]:
        self._known.update(norms)
        if len(self._known) < self._mine:
            return []
        self.units[-1].copy_(torch.tensor([self._known.get(index, 0.0) for index in range(len(self.units[-1]))], dtype=torch.float64))
        self._known.clear()
        return [self._last]
