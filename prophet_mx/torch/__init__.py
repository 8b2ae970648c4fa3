"""Scheduled all-reduce for PyTorch: ``from prophet_mx.torch import ScheduledOptimizer``. Needs no MXNet.

>>> optimizer = ScheduledOptimizer(model, optimizer)      # doctest: +SKIP
"""

from ..errors import MissingPackageError

try:
    import torch  # noqa: F401
except ImportError as error:
    if error.name != "torch":  # it is installed, and cannot be loaded
        raise
    raise MissingPackageError("prophet_mx.torch needs PyTorch: pip install 'torch>=2.1'") from error

from .monitor import Stats
from .optimizer import ScheduledOptimizer

__all__ = ["ScheduledOptimizer", "Stats"]
