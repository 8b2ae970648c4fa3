"""For training through a framework: a callback for Hugging Face's Trainer, a function for Accelerate, a strategy for Lightning.

A framework is imported when its own name here is asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .accelerate import schedule
    from .lightning import ScheduledStrategy
    from .trainer import ScheduledCallback

__all__ = ["ScheduledCallback", "ScheduledStrategy", "schedule"]

_MODULES = {"ScheduledCallback": "trainer", "ScheduledStrategy": "lightning", "schedule": "accelerate"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
