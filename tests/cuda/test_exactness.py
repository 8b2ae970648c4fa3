"""Training on emulated GPUs: scheduled, it gives the bits of a plain store. A fault in the copies shows."""

import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest

from support.cluster import run_cluster

JOB = Path(__file__).parent / "scripts" / "training.py"

# Group, store, servers, and how gradients are scheduled: in slices of 160 bytes, or whole. ``chunked``: each slice is copied by itself;
# ``early``: devices do their work at once.
RUNS = [
    ("module", "dist_sync", 1, "sliced chunked"),
    ("module", "dist_sync", 1, "whole"),
    ("module", "dist_device_sync", 2, "sliced"),
    ("trainer_on_workers", "dist_device_sync", 1, "sliced"),
    ("trainer_on_servers", "dist_sync", 2, "whole early"),
    ("arrays", "dist_sync", 2, "sliced chunked"),
    ("arrays", "dist_device_sync", 1, "sliced early"),
]
CASES = {"module": 7, "trainer_on_workers": 2, "trainer_on_servers": 2, "arrays": 2}
_found = {}


def outcome(emulated, group, store, servers, how, fault=""):
    """What the two workers of a job got, by rank: ``{case: {name: array}}``. ``how`` None is a plain store. A job runs once."""
    key = (group, store, servers, how, fault)
    if key not in _found:
        variant = "scheduled" if how else "plain"
        env = {**emulated, "STORE": store, "MXNET_KVSTORE_BIGARRAY_BOUND": "1000"}
        if how:
            env.update(PROPHET_POLICY="prophet", PROPHET_UNIT="160" if "sliced" in how else "4MB")
            env.update({"COPY_BYTES": "160"} if "chunked" in how else {})
            env.update({"EMULATED_CUDA_WORK": "early"} if "early" in how else {})
        roles = {"worker": {"EMULATED_CUDA_FAULT": fault}} if fault else None
        with tempfile.TemporaryDirectory(prefix="prophet-test-") as directory:
            run_cluster(JOB, 2, servers, env=env, role_env=roles, args=[group, variant, directory], timeout=100)
            _found[key] = [pickle.loads(Path(directory, f"{variant}-{rank}.pickle").read_bytes()) for rank in range(2)]
    return _found[key]


def different(one, other):
    """Cases and names of the arrays that are not the same, bit for bit."""
    assert one.keys() == other.keys() and all(one[case].keys() == other[case].keys() for case in one)
    return [(case, name) for case in one for name, array in one[case].items() if array.tobytes() != other[case][name].tobytes()]


@pytest.mark.parametrize("group, store, servers, how", RUNS, ids=lambda value: str(value).replace(" ", "-"))
def test_same_bits_as_the_plain_store(emulated, group, store, servers, how):
    scheduled = outcome(emulated, group, store, servers, how)
    plain = outcome(emulated, group, store, servers, None)
    for rank in range(2):
        assert len(scheduled[rank]) == CASES[group]
        assert different(plain[rank], scheduled[rank]) == []


@pytest.mark.parametrize("group", CASES)
def test_values_are_numbers_that_differ(emulated, group):
    """A device's memory is full of values that are no numbers, until a kernel or a copy writes it."""
    found = outcome(emulated, *next(run for run in RUNS if run[0] == group)[:3], None)[0]
    for case, arrays in found.items():
        for name, array in arrays.items():
            assert np.isfinite(array).all(), (case, name, array)
            assert array.size < 5 or len(np.unique(array)) > 1, (case, name, array)


@pytest.mark.parametrize("fault", ["copy:100", "wait:100", "swap:100"])
def test_a_planted_fault_is_seen(emulated, fault):
    """A copy to the host is left out; a stream is not waited for; the bytes of two copies are exchanged."""
    plain = outcome(emulated, "module", "dist_sync", 1, None)
    faulty = outcome(emulated, "module", "dist_sync", 1, "sliced chunked", fault)
    assert any(different(plain[rank], faulty[rank]) for rank in range(2))
