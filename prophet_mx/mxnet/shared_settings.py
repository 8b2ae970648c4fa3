"""The settings that are rank 0's for all workers: as numbers, which a message can carry, and in words for a worker whose own differ. Pure.

They control what the workers do together. All other settings are each worker's own: they change when its gradients leave, which cannot
change a result or cause a deadlock (scheduler.pyx), or what it shows and writes.
"""

import dataclasses
from typing import Any, List, Sequence

import numpy as np

from ..config import Config
from ..errors import ConfigError
from ..policies import OFF, POLICIES

SHARED = ("policy", "unit", "bandwidth", "message_cost", "warmup")


def encoded(config: Config) -> List[float]:
    """The shared settings, each as a float32: bandwidth and message cost are rounded, the others are exact. 0 is auto."""
    rounded = [float(np.float32(value or 0)) for value in (config.bandwidth, config.message_cost)]
    return [[OFF, *POLICIES].index(config.policy), config.unit or 0, *rounded, config.warmup]


def adopted(config: Config, numbers: Sequence[float]) -> Config:
    """``config`` with the shared settings that :func:`encoded` gave elsewhere. ConfigError if this worker does not know the policy."""
    policy, unit, bandwidth, message, warmup = numbers
    known = [OFF, *POLICIES]
    if policy >= len(known):
        raise ConfigError(f"rank 0 uses policy number {policy:.0f}, which this worker does not know; it knows: {', '.join(known)}")
    return dataclasses.replace(
        config,
        policy=known[int(policy)],
        unit=int(unit) or None,
        bandwidth=bandwidth or None,
        message_cost=message or None,
        warmup=int(warmup),
    )


def differences(own: Config, shared: Config) -> str:
    """Which of a worker's own settings are not those that count, with both values; '' if none. With the policy ``off`` only that counts."""
    counting = SHARED[:1] if shared.policy == "off" else SHARED
    return "; ".join(
        f"{name}={_shown(getattr(shared, name))}, not {_shown(getattr(own, name))}"
        for name, mine, other in zip(counting, encoded(own), encoded(shared))
        if mine != other
    )


def _shown(value: Any) -> str:
    return "auto" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
