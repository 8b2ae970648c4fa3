"""The handle of a store that was taken over, from then until it is freed: by the last reference, or at exit."""

from typing import Any, Tuple

from mxnet.base import KVStoreHandle
from mxnet.kvstore import KVStore

from ..errors import KVStoreError
from .api import PlainStore

ENDED = "the program is ending, and this store has been freed"


class EndedHandle:
    """In place of the handle of a store that was freed at exit. What still needs it gets an error, where MXNet would read freed memory."""

    def __bool__(self) -> bool:
        return False

    @property
    def value(self) -> Any:
        raise KVStoreError(ENDED)

    @property
    def _as_parameter_(self) -> Any:  # asked for by ctypes, which makes this error a part of its own
        raise KVStoreError(ENDED)


class OwnedStore(KVStore):
    """A store that is the sole owner of its handle: two owners would free it twice."""

    handle: Any
    _plain: PlainStore

    def _take_over(self, kv: KVStore) -> None:
        """Take the handle of another store, which is of no use afterwards."""
        super().__init__(kv.handle)
        kv.handle = KVStoreHandle()
        self._updater = kv._updater
        self._updater_func = kv._updater_func
        self._str_updater_func = kv._str_updater_func
        self._plain = PlainStore(self.handle)
        self._facts: Tuple[str, int, int] = (super().type, super().rank, super().num_workers)

    @property
    def type(self) -> str:
        """The type of the wrapped store."""
        return self._facts[0]

    @property
    def rank(self) -> int:
        """The number of this worker, from 0. It is known to the end of the program, as are the type and the number of workers."""
        return self._facts[1]

    @property
    def num_workers(self) -> int:
        """How many workers there are."""
        return self._facts[2]

    def free_at_exit(self) -> None:
        """Free the store; waits for the other workers. Nothing of it may be under way."""
        handle = self.handle
        self.handle = self._plain.handle = EndedHandle()
        try:
            PlainStore(handle).free()
        finally:
            handle.value = None  # MXNet's profiler has it as well
