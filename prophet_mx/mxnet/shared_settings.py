"""The settings that are rank 0's for all workers: in a form that a message can carry, and in words for a worker whose own differ. Pure.

They control what the workers do together. All other settings are each worker's own: they change when its gradients leave, which cannot
change a result or cause a deadlock (see the proof in _ext/), or what it shows and writes.
"""

import dataclasses
from typing import Any, Dict, Optional, Tuple

from ..config import Config
from ..errors import ConfigError
from ..policies import OFF, settings

SHARED = ("policy", "unit", "bandwidth", "message_cost", "warmup")


def encoded(config: Config) -> Dict[str, Any]:
    """The shared settings by name, of types that JSON has."""
    return {name: getattr(config, name) for name in SHARED}


def adopted(config: Config, shared: Dict[str, Any]) -> Tuple[Config, Optional[ConfigError]]:
    """``config`` with the shared settings that :func:`encoded` gave elsewhere, and what is wrong with them.

    Each process has a policy table of its own, as a program can add rows. A worker whose table lacks rank 0's policy cannot train. Until it
    has told the others, it keeps a policy that it has.
    """
    error = None
    policy, known = shared["policy"], settings()
    if policy not in known:
        error = ConfigError(
            f"policy={policy!r}, which rank 0 uses, is not known to this worker; it knows: {', '.join(known)}. Add the policy on all "
            "workers before they make their stores"
        )
        policy = config.policy if config.policy != OFF else Config.policy
    return dataclasses.replace(config, **{**shared, "policy": policy}), error


def differences(own: Config, shared: Config) -> str:
    """Which of a worker's own settings are not those that count, with both values; '' if none. With the policy ``off`` only that counts."""
    counting = SHARED[:1] if shared.policy == OFF else SHARED
    pairs = [(name, getattr(own, name), getattr(shared, name)) for name in counting]
    return "; ".join(f"{name}={_shown(other)}, not {_shown(mine)}" for name, mine, other in pairs if mine != other)


def _shown(value: Any) -> str:
    return "auto" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
