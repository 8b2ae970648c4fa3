"""The 2-norms of all gradients in a round in halves: owners compute them, and an exchange tells them to all ranks.

So ``clip_grad_norm_`` runs before most sums are there: it gets each gradient's norm, with the bits that it would compute itself.
"""

from typing import Dict, List, Optional, Sequence

import torch

from .tracked import Tracked


class Norms:
    """Of the gradients of one optimizer, in the round under way. :meth:`note` is called in the landing thread.

    Parameters
    ----------
    tracked : the parameters, by index.
    owners : by parameter; None for a gradient that all ranks reduce, of which one is to know the norm.
    rank, ranks : this one's number, and how many there are.

    Attributes
    ----------
    unit : what the exchange sums up. Numbers of 64 bits have room for any norm, and zeros of the other ranks change none.
    mine : how many norms this rank has to compute.
    there : whether no exchange is to come or under way. Written under the lock.
    """

    def __init__(self, tracked: Sequence[Tracked], owners: Sequence[Optional[int]], rank: int, ranks: int) -> None:
        self.unit = torch.zeros(len(tracked), dtype=torch.float64)
        self._mine = {index for index, owner in enumerate(owners) if (index % ranks if owner is None else owner) == rank}
        self.mine = len(self._mine)
        self._known: Dict[int, float] = {}
        self._all: List[float] = []
        self.there = True

    def begin(self) -> None:
        """A round begins. The exchange of the one before is over. The lock is held."""
        self.there = False
        if not self.mine:
            self.unit.zero_()  # it has the sums of that exchange, and note() writes nothing

    def note(self, tracked: Tracked) -> bool:
        """The sum of this gradient is there, on its owner; True if it was the last one of this rank: the exchange may go."""
        if tracked.index not in self._mine:
            return False
        self._known[tracked.index] = float(torch.linalg.vector_norm(tracked.view, 2.0))
        if len(self._known) < self.mine:
            return False
        self.unit.copy_(torch.tensor([self._known.get(index, 0.0) for index in range(len(self.unit))], dtype=torch.float64))
        self._known.clear()
        return True

    def exchanged(self) -> None:
        """The exchange has landed. In the landing thread, which holds the lock."""
        self._all = self.unit.tolist()
        self.there = True

    def of(self, tracked: Tracked) -> torch.Tensor:
        """The norm of its gradient, once :attr:`there`."""
        return torch.tensor(self._all[tracked.index], dtype=tracked.view.dtype)
