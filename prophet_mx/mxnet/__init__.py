"""The adapter for MXNet, which nothing outside imports. Its ``kvstore`` is where ByteScheduler's users look for it:
``from prophet_mx.mxnet.kvstore import ScheduledKVStore``.
"""

from importlib.util import find_spec

from ..errors import MXNetMissingError

if find_spec("mxnet") is None:
    raise MXNetMissingError(
        "prophet_mx needs MXNet 1.9.1, which is not installed: pip install mxnet==1.9.1 'numpy<1.24' "
        "(for CUDA 11.2: pip install mxnet-cu112==1.9.1 'numpy<1.24')"
    )
