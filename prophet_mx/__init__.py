"""prophet_mx: schedules the gradient traffic of MXNet ``dist_sync`` training.

>>> import mxnet as mx
>>> from prophet_mx import ScheduledKVStore
>>> kv = ScheduledKVStore(mx.kv.create("dist_sync"))      # doctest: +SKIP

MXNet itself is imported when :class:`ScheduledKVStore` is first used: its import never returns in a
process whose ``DMLC_ROLE`` is ``server`` or ``scheduler``, and the commands do not need it. Without MXNet, only this class is missing.
"""

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from .config import Config
from .errors import ConfigError, KVStoreError, LaunchError, MXNetMissingError, ProfileError, ProphetError, TraceError, UnsupportedMXNetError
from .runtime import __version__

if TYPE_CHECKING:
    from .mxnet.kvstore import ScheduledKVStore

__all__ = [
    "Config",
    "ConfigError",
    "KVStoreError",
    "LaunchError",
    "MXNetMissingError",
    "ProfileError",
    "ProphetError",
    "ScheduledKVStore",
    "TraceError",
    "UnsupportedMXNetError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name == "ScheduledKVStore":
        from .mxnet.kvstore import ScheduledKVStore

        return ScheduledKVStore
    similar = ["ScheduledKVStore"] if "kvstore" in name.lower() else get_close_matches(name, __all__, n=1)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}" + (f"; did you mean {similar[0]!r}?" if similar else ""))
