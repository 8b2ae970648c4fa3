"""Hugging Face Accelerate: its optimizer skips steps within ``accumulate()``, so ours must be the one inside."""

import logging
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..optimizer import ScheduledOptimizer

logger = logging.getLogger("prophet_mx")


def schedule(model: nn.Module, optimizer: torch.optim.Optimizer, **settings: Any) -> torch.optim.Optimizer:
    """Schedule the gradients of a model and an optimizer that ``Accelerator.prepare()`` has returned. In a job of one process, do nothing.

    Parameters
    ----------
    model, optimizer : what ``prepare()`` returned.
    settings : keywords of :class:`~prophet_mx.torch.ScheduledOptimizer`.

    Returns
    -------
    torch.optim.Optimizer
        the same ``AcceleratedOptimizer``, with a ScheduledOptimizer inside, as its attribute ``optimizer``.
    """
    if dist.is_initialized():
        put_inside(optimizer, ScheduledOptimizer(model, inside(optimizer), **settings))
    else:
        logger.info("this job has one process, and nothing to schedule")
    return optimizer


def inside(optimizer: Any) -> Any:
    """The optimizer in an ``AcceleratedOptimizer``; itself if it is none."""
    return optimizer.optimizer if hasattr(optimizer, "step_was_skipped") else optimizer


def put_inside(accelerated: Any, optimizer: torch.optim.Optimizer) -> None:
    """Let an ``AcceleratedOptimizer`` run this one, also where it steps through a GradScaler."""
    accelerated.__setstate__({"optimizer": optimizer})
