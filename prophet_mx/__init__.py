"""prophet_mx: schedules the gradient traffic of MXNet ``dist_sync`` training.

>>> import mxnet as mx
>>> from prophet_mx import ScheduledKVStore
>>> kv = ScheduledKVStore(mx.kv.create("dist_sync"))      # doctest: +SKIP

MXNet itself is imported when :class:`ScheduledKVStore` is first used: importing it in a process whose ``DMLC_ROLE`` is
``server`` or ``scheduler`` never returns, and tools such as ``prophet-mx launch`` do not need it.
"""
from difflib import get_close_matches
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .config import Config
from .errors import (ConfigError, KVStoreError, LaunchError, MXNetMissingError, ProfileError, ProphetError,
                     TraceError, UnsupportedMXNetError)

if TYPE_CHECKING:
    from .mxnet.kvstore import ScheduledKVStore

__version__ = "0.1.0"

__all__ = ["Config", "ConfigError", "KVStoreError", "LaunchError", "MXNetMissingError", "ProfileError", "ProphetError",
           "ScheduledKVStore", "TraceError", "UnsupportedMXNetError", "__version__"]

if find_spec("mxnet") is None:
    raise MXNetMissingError(
        "prophet_mx needs MXNet 1.9.1, which is not installed. Install it with one of prophet_mx's extras: "
        "'pip install prophet_mx[cpu]' (no GPU) or 'pip install prophet_mx[cu112]' (CUDA 11.2).")


def __getattr__(name: str) -> Any:
    if name == "ScheduledKVStore":
        from .mxnet.kvstore import ScheduledKVStore
        return ScheduledKVStore
    similar = ["ScheduledKVStore"] if "kvstore" in name.lower() else get_close_matches(name, __all__, n=1)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}" + (f"; did you mean {similar[0]!r}?" if similar else ""))
