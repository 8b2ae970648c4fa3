"""Which stores' traffic can be scheduled, in this environment and with these settings."""

import os

from mxnet.kvstore import KVStore

from ..config import Config

NAIVE = "MXNET_ENGINE_TYPE=NaiveEngine"


def why_unscheduled(kv: KVStore, config: Config) -> str:
    """Why this store's traffic is not scheduled, or ''."""
    if config.policy == "off":
        return "the policy is off"
    if "dist" not in kv.type:
        return f"the store is '{kv.type}', not dist_sync"
    if "async" in kv.type:
        return f"the store is '{kv.type}', where updates do not wait for one another"
    if kv._is_p3:
        return "DMLC_PS_VAN_TYPE=p3 selects MXNet's own scheduling"
    if is_naive():
        return f"{NAIVE} runs every operation inside the call that pushes it"
    return ""


def is_naive() -> bool:
    """Whether MXNet runs every operation inside the call that pushes it."""
    return os.environ.get("MXNET_ENGINE_TYPE", "") == "NaiveEngine"


def is_synchronous(kv: KVStore) -> bool:
    """Whether this is a store whose traffic could be scheduled, as it then is on all workers."""
    return "dist" in kv.type and "async" not in kv.type and not kv._is_p3
