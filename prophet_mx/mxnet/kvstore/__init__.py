"""An alias for those who come from ``bytescheduler.mxnet.kvstore``."""
from ...kvstore import ScheduledKVStore

__all__ = ["ScheduledKVStore"]
