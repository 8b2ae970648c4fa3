"""The names under which programs know the callback for TensorBoard, :mod:`prophet_mx.monitoring.metrics`, and what a store's ``stats()``
returns, :mod:`prophet_mx.monitoring.stats`."""

from .monitoring.metrics import Sample, ScalarLogger, between
from .monitoring.stats import Stats

__all__ = ["Sample", "ScalarLogger", "Stats", "between"]
