"""MXNet as it is: its C functions for the compiled core, its own operations on a store, and which of its stores can be scheduled."""

import ctypes
import os
from typing import Any, Dict, Union

import mxnet as mx
from mxnet.base import KVStoreHandle, check_call
from mxnet.kvstore import KVStore

from .. import _core
from ..config import Config
from ..errors import UnsupportedMXNetError
from ..policies import OFF

NAIVE = "MXNET_ENGINE_TYPE=NaiveEngine"

_bound = False


def bind() -> None:
    """Hand MXNet's C functions to the compiled core; cheap when called again.

    Raises UnsupportedMXNetError if this MXNet is not 1.9.x, the series whose engine layout (``CallbackOnComplete``, ``FnProperty``) the
    core knows, or it lacks one of the C functions.
    """
    global _bound
    if _bound:
        return
    if not mx.__version__.startswith("1.9."):
        raise UnsupportedMXNetError(
            f"MXNet {mx.__version__} is installed, but prophet_mx supports only the engine layout of MXNet 1.9.x; "
            "install mxnet==1.9.1 or mxnet-cu112==1.9.1, or set PROPHET_POLICY=off to train unscheduled"
        )
    library = mx.base._LIB
    try:
        addresses = {name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in _core.MXNET_FUNCTIONS}
    except AttributeError as error:
        raise UnsupportedMXNetError(f"the MXNet library at {library._name} lacks a function: {error}") from None
    _core.load_mxnet(addresses, mx.base.MXNetError, _copier())
    _core.cpu_arrays_are_plain(not mx.runtime.Features().is_enabled("MKLDNN"))
    _bound = True


def _copier() -> int:
    """The handle of a local store with key 0. Arrays are copied through it, because MXNet's own operator for copies takes no priority."""
    store, zero = KVStoreHandle(), mx.nd.zeros((1,))
    check_call(mx.base._LIB.MXKVStoreCreate(b"device", ctypes.byref(store)))
    check_call(mx.base._LIB.MXKVStoreInit(store, 1, (ctypes.c_int * 1)(0), (ctypes.c_void_p * 1)(zero.handle.value)))
    return store.value or 0


class PlainStore(KVStore):
    """MXNet's own methods, which schedule nothing, on a store whose handle belongs to somebody else.

    It must not be used once the owner has freed the handle.

    Attributes
    ----------
    initial : the arrays on the CPU from which rank 0 initialised keys that were not pushed since. MXNet keeps them, and pulls into them.
        They belong to the caller, who may have changed them, as batch normalisation does. So :meth:`pull` puts back what was in them.
    """

    def __init__(self, handle: KVStoreHandle) -> None:
        super().__init__(handle)
        self.initial: Dict[Union[str, int], mx.nd.NDArray] = {}

    def __del__(self) -> None:
        """Frees nothing."""

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """As :meth:`mxnet.kvstore.KVStore.pull`, but it changes nothing but ``out``."""
        names = key if isinstance(key, (list, tuple)) else [key]
        with mx.autograd.pause():
            kept = [(array, array.copy()) for array in map(self.initial.get, names) if array is not None]
            super().pull(key, out, priority, ignore_sparse)
            for array, copy in kept:
                copy.copyto(array)

    def leave_alone(self) -> None:
        """When the store is freed, do not wait for the other workers: they may never come, or the job's scheduler is gone."""
        check_call(mx.base._LIB.MXKVStoreSetBarrierBeforeExit(self.handle, 0))

    def free(self) -> None:
        """For the owner; waits for the other workers."""
        check_call(mx.base._LIB.MXKVStoreFree(self.handle))


def why_unscheduled(kv: KVStore, config: Config) -> str:
    """Why this store's traffic is not scheduled, or ''."""
    if config.policy == OFF:
        return "the policy is off"
    if "dist" not in kv.type:
        return f"the store is '{kv.type}', not dist_sync"
    if "async" in kv.type:
        return f"the store is '{kv.type}', where updates do not wait for one another"
    if kv._is_p3:
        return "DMLC_PS_VAN_TYPE=p3 selects MXNet's own scheduling"
    if is_naive():
        return f"{NAIVE} runs every operation inside the call that pushes it"
    return ""


def is_naive() -> bool:
    """Whether MXNet runs every operation inside the call that pushes it."""
    return os.environ.get("MXNET_ENGINE_TYPE", "") == "NaiveEngine"


def is_synchronous(kv: KVStore) -> bool:
    """Whether this is a store whose traffic could be scheduled, as it then is on all workers."""
    return "dist" in kv.type and "async" not in kv.type and not kv._is_p3
