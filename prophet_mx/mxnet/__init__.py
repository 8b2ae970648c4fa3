"""The adapter for MXNet, which nothing outside imports. Imports planning, profiling, network, monitoring. Its ``kvstore`` is
where ByteScheduler's users look for it: ``from prophet_mx.mxnet.kvstore import ScheduledKVStore``.
"""
