"""Every optimizer of MXNet gives on tiny slices, bit for bit, what it gives with plain dist_sync; or keeps its gradients whole."""
from pathlib import Path

import numpy as np
import pytest

from cluster import run_cluster

JOB = Path(__file__).parent / "jobs" / "optimizers.py"
PARAMETERS, STEPS = 5, 4

ELEMENTWISE = "sgd,nag,signum,ftml,dcasgd,adam,adagrad,rmsprop,adadelta,ftrl,adamax,ccsgd,test"
WHOLE = "lamb"                      # needs the norm of the whole array


def run(names, servers, folder, *more):
    """The workers' results, plain and scheduled: {variant: [by rank]}."""
    found = {}
    for variant in ("plain", "scheduled"):
        run_cluster(JOB, 2, servers, env={"PROPHET_UNIT": "100"}, args=[names, variant, str(folder), *more], timeout=120)
        found[variant] = [dict(np.load(folder / f"{variant}-{rank}.npz")) for rank in range(2)]
    return found


@pytest.mark.cluster
@pytest.mark.parametrize("names, servers, sliced", [(ELEMENTWISE, 1, True), (ELEMENTWISE, 2, True), (WHOLE, 1, False)])
def test_same_weights_as_plain(names, servers, sliced, tmp_path):
    found = run(names, servers, tmp_path)
    for rank in range(2):
        plain, scheduled = found["plain"][rank], found["scheduled"][rank]
        units = int(scheduled.pop("units"))
        plain.pop("units")
        assert plain.keys() == scheduled.keys() and len(plain) == PARAMETERS * len(names.split(","))
        assert [key for key in plain if plain[key].tobytes() != scheduled[key].tobytes()] == []
        whole = PARAMETERS * STEPS * len(names.split(","))
        assert units > whole if sliced else units == whole
    moved = found["plain"][0]
    assert all(not np.array_equal(moved[f"{a} {i}"], moved[f"{b} {i}"]) for i in range(PARAMETERS)
               for a, b in zip(names.split(","), names.split(",")[1:]))


@pytest.mark.cluster
def test_nothing_is_scheduled_where_the_order_of_updates_matters(tmp_path):
    """With Nadam the servers' order of updates changes the result, and in plain dist_sync it varies from run to run: here it does not."""
    found = run("nadam", 1, tmp_path, "ordered")
    for plain, passed in zip(found["plain"], found["scheduled"]):
        assert int(passed["units"]) == 0 and len(passed) == PARAMETERS + 1
        assert [key for key in plain if plain[key].tobytes() != passed[key].tobytes()] == []


@pytest.mark.cluster
def test_an_optimizer_that_needs_whole_arrays_is_refused_once_they_are_sliced():
    code = """
import mxnet as mx
from prophet_mx import KVStoreError, ScheduledKVStore
kv = ScheduledKVStore(mx.kv.create("dist_sync"))
kv.init("w", mx.nd.zeros((100,)))
kv.set_optimizer(mx.optimizer.create("sgd"))
out = mx.nd.zeros((100,))
kv.pushpull("w", mx.nd.ones((100,)), out=out)
out.wait_to_read()
try:
    kv.set_optimizer(mx.optimizer.create("lamb"))
except KVStoreError as error:
    assert "LAMB" in str(error) and "slices" in str(error), error
    print("refused")
"""
    result = run_cluster(code, 2, 1, env={"PROPHET_UNIT": "100"}, timeout=60)
    assert sum("refused" in process.output for process in result.processes if process.role == "worker") == 2
