"""The module path of ByteScheduler: ``from prophet_mx.mxnet.kvstore import ScheduledKVStore`` works as ``prophet_mx`` itself does."""
from ..kvstore import ScheduledKVStore

__all__ = ["ScheduledKVStore"]
