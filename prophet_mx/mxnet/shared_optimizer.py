"""The optimizer on the servers, as the workers know it at their meeting. A script may set it on any worker, or on several.

On the servers, the last one counts. Workers that set one at the same time usually set the same. Otherwise nobody knows which comes last in
plain ``dist_sync``; here it is that of the first of these workers. One that was set after a later call for which all workers wait (a
barrier, or one that makes keys) came later.
"""

import logging
import pickle
from typing import Optional, Sequence, Set

import mxnet as mx
import numpy as np

from ..errors import KVStoreError
from .api import PlainStore
from .keys import Key
from .layout import Wrapping
from .meeting import Meeting
from .optimizers import order_matters, slicing_allowed

logger = logging.getLogger("prophet_mx")


class SharedOptimizer:
    """One worker's part in it.

    Parameters
    ----------
    own : the optimizer that this worker has set, pickled; None if it has set none.
    time : how often this worker had waited for all others when it set it.

    Attributes
    ----------
    ordered : whether the result of any worker's depends on the order of updates; known from :meth:`agree` on.
    why_whole : why arrays have to stay whole for any worker's, as far as this worker knows; '' if they need not.
    is_set : whether any worker has one.
    """

    ordered = is_set = False
    why_whole = ""

    def __init__(self, plain: PlainStore, meeting: Meeting, own: Optional[bytes], time: int) -> None:
        self._plain = plain
        self._meeting = meeting
        self.own, self._time = own, time
        self._senders: Optional[Set[int]] = None  # who sends its own; None: whoever has one
        self._first_whole = False  # this is the first worker whose optimizer is not known to be exact on slices

    def flags(self) -> Sequence[bool]:
        """What this worker tells of its own: whether there is one, whether the order of updates matters to it, whether arrays must stay
        whole for it."""
        made = None if self.own is None else pickle.loads(self.own)
        return [False] * 3 if made is None else [True, order_matters(made), not slicing_allowed(made)]

    def agree(self, key: Key, first: Sequence[float], wrapping: Optional[Wrapping]) -> None:
        """Learn which workers have set an optimizer, and of what kinds. From then on the one whose optimizer counts sends it. Blocks until
        every worker is here.

        ``key`` is one of ours, with three elements for each worker and one more. ``first`` are the flags of rank 0. Nothing else is heard
        without a ``wrapping``: where nobody knows the numbers of our keys, or has seen a key made, an optimizer would update the messages
        of the others. Nothing is cut in that case. A worker whose optimizer needs the order of updates objects, if rank 0's does not.
        """
        rank, own = self._plain.rank, self.flags()
        heard = np.zeros((self._plain.num_workers, len(own)))
        if wrapping is None:
            heard[0] = first
        else:
            self._senders = {0} if first[0] else None
            self.send(wrapping)
            mine = heard.copy()
            mine[rank] = own
            mine[rank, 0] *= 1 + self._time
            heard = self._meeting.added_up(key, mine.ravel()).reshape(mine.shape)
        times, (ordered, whole) = heard.T[0], heard.T[1:] != 0
        self.is_set, self.ordered = bool(times.any()), bool(ordered.any())
        self.why_whole = f"{self._name() if own[2] else 'an optimizer'} is not known to be exact on slices" if whole.any() else ""
        self._first_whole = own[2] and not whole[:rank].any()
        self._senders = {int(np.argmax(times))} if self.is_set else set()
        if own[1] and not self.ordered:
            self._meeting.object(
                KVStoreError(
                    f"{self._depends()}, and worker {rank} cannot tell the others, as keys were made before the store was wrapped: wrap it "
                    "first"
                )
            )
        if own[1] and not ordered[:rank].any():
            logger.warning("gradient traffic is not scheduled: %s, so that order is kept", self._depends())

    def say_whole(self, alone: bool) -> None:
        """Log why arrays stay whole for it, if it is the ``alone`` reason: on one worker."""
        if alone and self._first_whole:
            logger.warning("large gradients are not sliced: %s", self.why_whole)

    def _name(self) -> str:
        return type(None if self.own is None else pickle.loads(self.own)).__name__

    def _depends(self) -> str:
        return f"the result of {self._name()} depends on the order in which parameters are updated"

    def pass_through(self, wrapping: Optional[Wrapping], texts: bool, first: bool, wraps: bool) -> Optional[Wrapping]:
        """How to wrap optimizers where nothing is scheduled: the key of the meeting still shifts the numbers of later ``texts``. An
        optimizer on the servers to which that matters is sent again, wrapped: rank 0's if it ``wraps`` it, or any if rank 0 has none
        (not ``first``). None if nobody knows the numbers. Blocks until every worker is here."""
        if wrapping is None or not texts or first and not wraps:
            return wrapping
        self._senders = {0} if first else None
        self._send(None if self.own is None else wrapping.wrap(self.own, adopts=True))
        if not first:
            mine = np.arange(self._plain.num_workers) == (self._plain.rank if self.own is not None else -1)
            if not self._meeting.raised(self._meeting.key, mine, self._meeting.elements).any():
                return wrapping
        if self._meeting.stored():
            return wrapping
        self._send(None if self.own is None else pickle.loads(self.own))
        return None

    def send(self, wrapping: Wrapping) -> None:
        """Send it wrapped, if this worker is one that sends it. Blocks until every worker is here."""
        self._send(None if self.own is None else wrapping.wrap(self.own, meets=True))

    def _send(self, optimizer: Optional[mx.optimizer.Optimizer]) -> None:
        """A script may have set the optimizer on one worker alone: so all wait until it is there."""
        if optimizer is not None and (self._senders is None or self._plain.rank in self._senders):
            self._plain.set_optimizer(optimizer)
        self._plain._barrier()
