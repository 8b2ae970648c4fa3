"""The module path of ByteScheduler: ``from prophet_mx.mxnet.kvstore import ScheduledKVStore`` works too."""
from ..kvstore import ScheduledKVStore

__all__ = ["ScheduledKVStore"]
