"""Binds the compiled core to the MXNet library that this process has loaded."""

import ctypes

import mxnet as mx
from mxnet.base import KVStoreHandle, check_call

from .. import _core
from ..errors import UnsupportedMXNetError

_bound = False


def bind() -> None:
    """Hand MXNet's C functions to the compiled core; cheap when called again.

    Raises
    ------
    UnsupportedMXNetError
        this MXNet is not 1.9.x, the series whose engine layout (``CallbackOnComplete``, ``FnProperty``) the core knows, or it
        lacks one of the C functions.
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
    """The handle of a local store through which arrays are copied, as MXNet's operator for copies takes no priority; it has key 0."""
    store, zero = KVStoreHandle(), mx.nd.zeros((1,))
    check_call(mx.base._LIB.MXKVStoreCreate(b"device", ctypes.byref(store)))
    check_call(mx.base._LIB.MXKVStoreInit(store, 1, (ctypes.c_int * 1)(0), (ctypes.c_void_p * 1)(zero.handle.value)))
    return store.value or 0
