"""The adapter for MXNet, which nothing outside imports. Its ``kvstore`` is where ByteScheduler's users look for it:
``from prophet_mx.mxnet.kvstore import ScheduledKVStore``.

- ``kvstore``, ``arguments``: what the caller sees, and the checks of what it gives.
- ``store``, ``owned``, ``keys``, ``api``: the wrapped store with its mode, its handle and its keys, and MXNet as it is.
- ``negotiation``, ``meeting``, ``shared_optimizer``, ``layout``: the first push, what workers exchange at it, and what they agree on.
- ``slice_optimizer`` and ``server_...``, ``optimizers``: what the servers run, and what a worker has to know of an optimizer before.
- ``data_path``, ``parameters``, ``order_exchange``: what gradients take from then on, and how their order changes.
- ``failures``: how workers learn that the optimizer on the servers has failed.
- ``lifecycle``: how scheduling, a store and its process end.
- ``creation``: ``mx.kv.create``, for a worker that makes no store, or a second one.
- ``automatic``, ``probe``: entry points of ``launch --schedule`` and of ``doctor``.
"""

from importlib.util import find_spec

from ..errors import MXNetMissingError

if find_spec("mxnet") is None:
    raise MXNetMissingError(
        "prophet_mx needs MXNet 1.9.1, which is not installed: pip install mxnet==1.9.1 'numpy<1.24' "
        "(for CUDA 11.2: pip install mxnet-cu112==1.9.1 'numpy<1.24')"
    )
