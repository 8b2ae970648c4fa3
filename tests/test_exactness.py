"""Training through ScheduledKVStore gives, bit for bit, what plain dist_sync gives: real MXNet, real servers, two workers."""
import pickle
import tempfile
from functools import lru_cache
from pathlib import Path

import pytest

from cluster import run_cluster

JOB = Path(__file__).parent / "jobs" / "exactness.py"

# Splits arrays of 1000 elements over the servers, as MXNet does with a million.
ENV = {"MXNET_KVSTORE_BIGARRAY_BOUND": "1000"}

CASES = {
    "module_on_store": ("first", "batch_norm", "adam", "buckets", "old_model", "half"),
    "module_on_worker": ("one_device", "two_devices", "two_devices_on_store"),
    "trainer_on_store": ("trainer", "int_keys"),
    "trainer_on_worker": ("trainer_two_devices", "sums"),
    "trainer_sparse": ("sparse_embedding", "sparse_weights"),
    "loops": ("string_keys", "two_values"),
    "compression": ("two_bit",),
}

RUNS = [("module_on_store", 1, "prophet"), ("module_on_store", 2, "prophet"), ("module_on_store", 2, "priority"),
        ("module_on_worker", 1, "prophet"), ("trainer_on_store", 2, "prophet"), ("trainer_on_worker", 2, "prophet"),
        ("trainer_sparse", 2, "prophet"), ("loops", 1, "prophet"), ("loops", 2, "fifo"), ("compression", 2, "prophet")]


def outcome(group, servers, policy, seed=1):
    """What the two workers of a job got: a list by rank of {case: result}. ``policy`` None: plain dist_sync."""
    result = run_once(group, servers, policy, seed)
    if isinstance(result, AssertionError):
        raise result
    return result


@lru_cache(maxsize=None)
def run_once(group, servers, policy, seed):
    """The same, or the AssertionError of a job that failed: a job runs once for all its cases."""
    variant = "scheduled" if policy else "plain"
    with tempfile.TemporaryDirectory(prefix="prophet-test-") as directory:
        try:
            run_cluster(JOB, 2, servers, env={**ENV, **({"PROPHET_POLICY": policy} if policy else {})},
                        args=[group, variant, directory, seed], timeout=90)
        except AssertionError as error:
            return error
        return [pickle.loads(Path(directory, f"{variant}-{rank}.pickle").read_bytes()) for rank in range(2)]


def different(one, other):
    """Names of the arrays that are not the same, bit for bit."""
    assert one.keys() == other.keys() and one
    return [name for name in one if one[name].dtype != other[name].dtype or one[name].shape != other[name].shape
            or one[name].tobytes() != other[name].tobytes()]


@pytest.mark.parametrize("group, servers, policy, case", [
    pytest.param(*run, case, id=f"{run[0]}-{run[1]}server-{run[2]}-{case}") for run in RUNS for case in CASES[run[0]]])
def test_same_result_as_plain_dist_sync(group, servers, policy, case):
    plain, scheduled = outcome(group, servers, None), outcome(group, servers, policy)
    for rank in range(2):
        assert different(plain[rank][case]["weights"], scheduled[rank][case]["weights"]) == []
        if scheduled[rank][case]["expected"] is None:
            assert scheduled[rank][case]["bytes"] > 0
        else:
            assert scheduled[rank][case]["bytes"] == scheduled[rank][case]["expected"]


def test_the_comparison_sees_differences():
    """Other data gives other values, in every array that is trained."""
    one, other = outcome("loops", 1, "prophet"), outcome("loops", 1, "prophet", seed=2)
    for case in CASES["loops"]:
        weights = one[0][case]["weights"]
        assert different(weights, other[0][case]["weights"]) == list(weights)
