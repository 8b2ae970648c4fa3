"""Binds the compiled core to the MXNet library that this process has loaded."""

import ctypes

import mxnet as mx

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
            f"MXNet {mx.__version__} is installed, but prophet_mx knows the engine layout of MXNet 1.9.x only; "
            "install mxnet==1.9.1 or mxnet-cu112==1.9.1, or set PROPHET_POLICY=off to train unscheduled"
        )
    library = mx.base._LIB
    try:
        addresses = {name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in _core.MXNET_FUNCTIONS}
    except AttributeError as error:
        raise UnsupportedMXNetError(f"the MXNet library at {library._name} lacks a function: {error}") from None
    _core.load_mxnet(addresses, mx.base.MXNetError)
    _bound = True
