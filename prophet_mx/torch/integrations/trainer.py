"""Hugging Face Trainer: a callback."""

from typing import Any

from transformers import TrainerCallback

from ..optimizer import ScheduledOptimizer
from .accelerate import inside, put_inside, schedule


class ScheduledCallback(TrainerCallback):
    """Schedules the gradients of a Trainer while it trains: ``Trainer(..., callbacks=[ScheduledCallback()])``.

    The optimizer is the Trainer's own. The log and ``optimizer.stats()`` are those of a :class:`~prophet_mx.torch.ScheduledOptimizer`.

    Parameters
    ----------
    settings : keywords of ScheduledOptimizer.

    Attributes
    ----------
    optimizer : the ScheduledOptimizer while the Trainer trains; None at other times, and in a job of one process.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self.optimizer: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The model is in its DistributedDataParallel, which is adopted in the first forward, and the optimizer prepared."""
        schedule(kwargs["model"], kwargs["optimizer"], **self._settings)
        found = inside(kwargs["optimizer"])
        self.optimizer = found if isinstance(found, ScheduledOptimizer) else None

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """All updates are done, and model and optimizer as they were."""
        if self.optimizer is not None:
            self.optimizer.close()
            put_inside(kwargs["optimizer"], self.optimizer.optimizer)
            self.optimizer = None
