"""Every optimizer of MXNet gives on tiny slices, bit for bit, what it gives with plain dist_sync; or keeps its gradients whole."""

import os
import re

import numpy as np
import pytest

from support.cluster import package_env, run_cluster
from support.paths import SCRIPTS

JOB = SCRIPTS / "optimizers.py"
PARAMETERS, STEPS = 5, 4

ELEMENTWISE = "sgd,nag,signum,ftml,dcasgd,adam,adagrad,rmsprop,adadelta,ftrl,adamax,ccsgd,test"
WHOLE = "lamb"  # needs the norm of the whole array
ORDERED = "nadam,lars,lbsgd,sgld"  # the order of updates matters


def run(names, servers, folder, *more):
    """The workers' results, plain and scheduled: {variant: [by rank]}; ``log``: all output of the latter."""
    found = {}
    for variant in ("plain", "scheduled"):
        job = run_cluster(JOB, 2, servers, env={"PROPHET_UNIT": "100"}, args=[names, variant, str(folder), *more], timeout=120)
        found[variant] = [dict(np.load(folder / f"{variant}-{rank}.npz")) for rank in range(2)]
    return {**found, "log": job.logs()}


@pytest.mark.parametrize("names, servers, sliced", [(ELEMENTWISE, 2, True), (WHOLE, 1, False)])
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
    assert sliced or found["log"].count("large gradients are not sliced: LAMB is not known to be exact on slices") == 1, found["log"]
    moved = found["plain"][0]
    assert all(
        not np.array_equal(moved[f"{a} {i}"], moved[f"{b} {i}"])
        for i in range(PARAMETERS)
        for a, b in zip(names.split(","), names.split(",")[1:])
    )


def test_nothing_is_scheduled_where_the_order_of_updates_matters(tmp_path):
    """With these the servers' order of updates changes the result, and in plain dist_sync it varies from run to run: here it does not.
    The first of them decides; unit/mxnet/test_slice_optimizer.py has each."""
    found = run(ORDERED, 1, tmp_path, "ordered")
    for plain, passed in zip(found["plain"], found["scheduled"]):
        assert int(passed["units"]) == 0 and len(passed) == PARAMETERS * len(ORDERED.split(",")) + 1
        assert [key for key in plain if plain[key].tobytes() != passed[key].tobytes()] == []
    lines = re.findall("gradient traffic is not scheduled: the result of Nadam depends on the order", found["log"])
    assert len(lines) == 1, found["log"]


CUSTOM = """
import logging
import mxnet as mx
from normalised import Normalised
from prophet_mx import KVStoreError, ScheduledKVStore

class Halving(mx.lr_scheduler.LRScheduler):
    def __call__(self, count):
        return 0.5 ** count

logging.basicConfig(level=logging.INFO)
plain = mx.kv.create("dist_sync")
plain.init(7, mx.nd.zeros((64,)))
kv = ScheduledKVStore(plain)
try:
    kv.set_optimizer(Normalised(lr_scheduler=Halving()))
except KVStoreError as error:
    print("refused:", error)
kv.set_optimizer(Normalised())
kv.init(8, mx.nd.zeros((64,)))
out = mx.nd.zeros((64,))
for step in range(1, 5):
    kv.pushpull(8, mx.nd.ones((64,)), out=out)          # the norm of both workers' sum is 16
    assert (out == -step / 8).asnumpy().all(), out
try:
    kv.pushpull(7, mx.nd.ones((64,)), out=out)
except KVStoreError as error:
    print("refused:", error)
kv.pushpull(8, mx.nd.ones((64,)), out=out)
assert (out == -5 / 8).asnumpy().all(), out
print("units", kv.stats()["units"])
"""


def test_an_optimizer_that_is_not_mxnets_own_gets_whole_gradients():
    """Also: a numbered key from before the store was wrapped is refused where others came after, without harm to the job; and so is a
    class of the script itself, with which MXNet's servers would add up gradients instead of updating weights."""
    path = os.pathsep.join([package_env()["PYTHONPATH"], str(JOB.parent)])
    result = run_cluster(CUSTOM, 2, 1, env={"PROPHET_UNIT": "100", "PYTHONPATH": path})
    for worker in result.workers:
        assert "units 5" in worker.output and "layout: no gradient is sliced" in worker.output, result.logs()
        assert "refused: key 7 was not initialised through this store" in worker.output, result.logs()
        assert "refused: the servers cannot load Halving, a class of the script itself" in worker.output, result.logs()
    assert result.logs().count("large gradients are not sliced: Normalised is not known to be exact on slices") == 1, result.logs()


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


def test_a_store_that_is_wrapped_after_its_keys_were_made_with_names():
    """Nobody knows what the servers call the keys, so nothing may depend on it."""
    code = """
import mxnet as mx
from prophet_mx import ScheduledKVStore
kv = mx.kv.create("dist_sync")
kv.set_optimizer(mx.optimizer.create("test", rescale_grad=1.0))         # weight += gradient
out = mx.nd.zeros((300,))
kv.init("w", out)
kv = ScheduledKVStore(kv)
for turn in range(1, 6):
    kv.pushpull("w", mx.nd.ones((300,)), out=out)
    assert (out == 2 * turn).asnumpy().all(), (turn, out[0].asscalar())
assert kv.stats()["units"] == 5
"""
    run_cluster(code, 2, 1, timeout=60)


ANYBODY = """
import logging, os, sys
import mxnet as mx
from prophet_mx import ScheduledKVStore

logging.basicConfig(level=logging.INFO)
kv = ScheduledKVStore(mx.kv.create("dist_sync"), unit=400)
kind, before, after = sys.argv[1:]                      # who sets which optimizer, one after the other: "1:sgd,0:nag"
keys = list(range(4)) if kind == "number" else [f"w{i}" for i in range(4)]
weights, expected = ([mx.nd.ones((300,)) for _ in keys] for _ in range(2))

def set_optimizers(text):
    for turn, (rank, name) in enumerate(one.split(":") for one in text.split(",")):
        made = mx.optimizer.create(name, learning_rate=0.125 / (1 + turn), wd=0.01, param_idx2name={i: f"w{i}" for i in range(5)})
        made.set_lr_mult({f"w{i}": 1.0 + i for i in range(5)})
        if kv.rank == int(rank):
            kv.set_optimizer(made)
        kv._barrier()
    return mx.optimizer.get_updater(made)               # of MXNet, which has the last one

def train(update):
    for step in range(1, 4):
        for place, key in reversed(list(enumerate(keys))):
            kv.pushpull(key, mx.nd.arange(300) * step * (1 + kv.rank), out=weights[place])
            if "nadam" in before:                       # without a wait, plain has no order of updates either
                weights[place].wait_to_read()
            update(place, mx.nd.arange(300) * step * 3, expected[place])
        for place in range(len(keys)):
            assert weights[place].asnumpy().tobytes() == expected[place].asnumpy().tobytes(), (place, step, weights[place], expected[place])

kv.init(keys, weights)
train(set_optimizers(before))
if kind != "number":
    keys.append("w4")
    for arrays in weights, expected:
        arrays.append(mx.nd.ones((300,)))
    kv.init("w4", weights[4])
train(set_optimizers(after))
print("trained", kv.stats()["units"])
"""


@pytest.mark.parametrize(
    "kind, before, after, units, said",
    [
        ("number", "1:sgd", "0:sgd,1:nag", 2 * 3 * 4 * 3, "are sliced"),
        ("text", "0:sgd,1:lamb", "1:sgd,0:lamb", 3 * 4 + 3 * 5, "large gradients are not sliced: LAMB is not known to be exact on slices"),
        ("text", "1:nadam", "1:sgd", 0, "gradient traffic is not scheduled: the result of Nadam depends on the order in which"),
        ("off", "1:sgd", "1:adam", 0, "the policy is off"),
    ],
)
def test_any_worker_may_set_the_optimizer_and_the_last_one_counts(kind, before, after, units, said):
    """Before the first push and after it, with multipliers by number: what MXNet gives, in every bit. What it needs of the layout holds on
    all workers."""
    job = run_cluster(ANYBODY, 2, 1, args=[kind, before, after], env={"PROPHET_POLICY": "off"} if kind == "off" else {})
    assert all(f"trained {units}" in worker.output for worker in job.workers), job.logs()
    assert said in job.logs(), job.logs()
