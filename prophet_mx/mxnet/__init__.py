"""The adapter for MXNet, which nothing outside imports. Its ``kvstore`` is where ByteScheduler's users look for it:
``from prophet_mx.mxnet.kvstore import ScheduledKVStore``.
"""

from importlib.util import find_spec

from ..errors import MXNetMissingError

if find_spec("mxnet") is None:
    raise MXNetMissingError(
        "prophet_mx needs MXNet 1.9.1, which is not installed. Install it with one of prophet_mx's extras: "
        "'pip install prophet_mx[cpu]' (no GPU) or 'pip install prophet_mx[cu112]' (CUDA 11.2)."
    )
