"""Lightning: a strategy. It is that of the package that the program uses, ``lightning`` or ``pytorch_lightning``."""

import importlib
import sys
from typing import TYPE_CHECKING, Any, List, Mapping, Optional

from ..optimizer import ScheduledOptimizer

if TYPE_CHECKING:
    from lightning.pytorch.strategies import DDPStrategy
else:
    _PACKAGE = "pytorch_lightning" if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules else "lightning.pytorch"
    DDPStrategy = importlib.import_module(f"{_PACKAGE}.strategies").DDPStrategy


class ScheduledStrategy(DDPStrategy):
    """Lightning's DDPStrategy, with scheduled gradients: ``Trainer(strategy=ScheduledStrategy())``.

    Parameters
    ----------
    settings : keywords of :class:`~prophet_mx.torch.ScheduledOptimizer`.
    options : of DDPStrategy.
    """

    optimizers: List[Any]  # a property of DDPStrategy

    def __init__(self, *, settings: Optional[Mapping[str, Any]] = None, **options: Any) -> None:
        super().__init__(**options)
        self._settings = dict(settings or {})

    def setup_optimizers(self, trainer: Any) -> None:
        """The optimizer of ``configure_optimizers()``, around the DistributedDataParallel that Lightning has just made."""
        super().setup_optimizers(trainer)
        self.optimizers = [
            each if isinstance(each, ScheduledOptimizer) else ScheduledOptimizer(self.model, each, **self._settings)
            for each in self.optimizers
        ]

    def teardown(self) -> None:
        """All updates are done, and model and optimizer as they were, before Lightning moves them to the host."""
        for optimizer in self.optimizers:
            if isinstance(optimizer, ScheduledOptimizer):
                optimizer.close()
        super().teardown()
