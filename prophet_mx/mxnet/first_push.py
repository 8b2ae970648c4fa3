"""The first push to a synchronous store, at which all workers meet: they learn whether rank 0 schedules and how, and fix the layout if it
does. The steps that they take together are in negotiation.py.
"""

import logging
from contextlib import nullcontext
from typing import ContextManager, Optional

import mxnet as mx
from mxnet.kvstore import KVStore

from ..config import Config
from ..errors import ConfigError, KVStoreError, ProphetError
from .api import NAIVE, PlainStore, bind, is_naive
from .data_path import ScheduledPath
from .keys import KeyBook
from .lifecycle import attend, let_go
from .meeting import differences
from .negotiation import Agreeing, Wrapping

logger = logging.getLogger("prophet_mx")

OTHERS = "the other workers, which must push their first gradient as well, each through a ScheduledKVStore"


class FirstPush:
    """One worker's part in the meeting: :meth:`meet`, once.

    Parameters
    ----------
    store : the ScheduledKVStore; what is sent here passes its own methods by.
    keys, config : the store's; the settings are this worker's own.
    path : None if this worker's own settings schedule nothing.
    compression : factor by which MXNet makes gradients smaller.

    Attributes
    ----------
    config, path : what holds from then on; no path where nothing is scheduled.
    wrapping : how optimizers are wrapped for the servers from then on, if they are.
    refused : why nothing may be sent, '' if it may.
    """

    def __init__(self, store: KVStore, keys: KeyBook, config: Config, path: Optional[ScheduledPath], compression: int) -> None:
        self._store = store
        self._keys = keys
        self._compression = compression
        self.config = config
        self.path = path
        self.wrapping: Optional[Wrapping] = None
        self.refused = ""

    def meet(self, sample: Optional[mx.nd.NDArray], optimizer: Optional[bytes]) -> None:
        """Blocks until all workers are here. ``sample`` is the first gradient, ``optimizer`` the one on the servers, pickled.

        Raises
        ------
        KVStoreError
            this worker cannot do what rank 0 decided, or the workers have agreed to send nothing: ``refused`` then says why.
        """
        plain = PlainStore(self._store.handle)
        agreeing = Agreeing(plain, self._keys, self._compression != 1)
        try:
            with self._watched():
                scheduled, config = agreeing.settings(self.config, self.path is not None, optimizer)
                if not scheduled:
                    self.wrapping = agreeing.pass_through(optimizer)
        except KVStoreError as error:
            self.refused = str(error)
            PlainStore(self._store.handle).leave_alone()  # this process can end though the others wait
            raise
        changed = self._tell(scheduled, config)
        if not scheduled:
            self._unschedule()
            return
        self.config = config
        if self.path is None:
            self.path = self._new_path()
        elif changed:
            self.path.adopt(config)
        try:
            with self._watched():
                self.wrapping = self.path.agree(plain, agreeing, sample, optimizer)
        except (KVStoreError, ConfigError) as error:
            self.refused = str(error)
            raise
        if self.path.in_order:
            self._unschedule()

    def _tell(self, scheduled: bool, config: Config) -> bool:
        """Log which of this worker's own settings are not in force; whether there are any."""
        changed = differences(self.config, config)
        if not scheduled and config.policy != "off" and self.path is not None:
            logger.warning("worker %d: gradient traffic is not scheduled: rank 0 has %s", self._store.rank, NAIVE)
        elif changed:
            logger.warning("worker %d: all workers use rank 0's settings: %s", self._store.rank, changed)
        return bool(changed)

    def _watched(self) -> ContextManager[None]:
        """While this worker waits for the others, the watchdog counts the time."""
        return nullcontext() if self.path is None else self.path.watchdog.blocked(OTHERS)

    def _unschedule(self) -> None:
        """Continue as if the store had never been scheduled."""
        if self.path is not None:
            self.path.close()
        self.path = None
        let_go(self._store)

    def _new_path(self) -> ScheduledPath:
        """For a worker whose own settings schedule nothing, while the others wait for it."""
        try:
            if is_naive():
                raise KVStoreError(
                    f"worker {self._store.rank}: {NAIVE} runs every operation inside the call that pushes it, and rank 0 "
                    "schedules gradient traffic, which needs another engine on all workers: unset MXNET_ENGINE_TYPE for "
                    "this worker, or set PROPHET_POLICY=off for rank 0"
                )
            bind()
            path = ScheduledPath(self._store, self.config, self._keys)
        except ProphetError:
            PlainStore(self._store.handle).leave_alone()  # this process can end though the others wait
            raise
        path.parameters.compression = self._compression
        path.start()
        attend(self._store, path)
        return path


def text_may_come(store: KVStore, keys: KeyBook, compressed: bool, optimizer: Optional[bytes]) -> bool:
    """After the meeting, where nobody knows the numbers of text keys: whether another may be made. ``optimizer`` is the one that this store
    has sent, pickled. Blocks until every worker is here, as making the key does."""
    return Agreeing(PlainStore(store.handle), keys, compressed).text_may_come(optimizer)
