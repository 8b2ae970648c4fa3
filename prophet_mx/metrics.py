"""The name under which programs know the callback for TensorBoard: :mod:`prophet_mx.monitoring.metrics`."""

from .monitoring.metrics import Sample, ScalarLogger, between

__all__ = ["Sample", "ScalarLogger", "between"]
