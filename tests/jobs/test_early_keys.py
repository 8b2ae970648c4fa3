"""Keys that were initialised before the store was wrapped: right values, or an error, never wrong ones."""

import pytest

from support.cluster import run_cluster

JOB = """
import logging, sys
import mxnet as mx
from prophet_mx import KVStoreError, ScheduledKVStore

logging.basicConfig(level=logging.INFO)
name, when = {"number": int, "text": "w{}".format}[sys.argv[1]], sys.argv[2]
plain = mx.kv.create("dist_sync")
for i in range(3):
    plain.init(name(i), mx.nd.ones((100,)))
named = mx.optimizer.create("sgd", learning_rate=0.125, param_idx2name={i: f"w{i}" for i in range(7)})
sgd = mx.optimizer.create("sgd", learning_rate=0.125) if when == "unnamed" else named
if when in ("optimizer", "all"):
    plain.set_optimizer(sgd)
    plain._barrier()
kv = ScheduledKVStore(plain)
if when not in ("optimizer", "all"):
    kv.set_optimizer(sgd)
keys = range(3)
try:
    if when in ("late", "optimizer"):
        keys = range(3, 6)
        for i in keys:
            kv.init(name(i), mx.nd.ones((100,)))
    for step in range(1, 20):
        for i in reversed(keys):
            out = mx.nd.zeros((100,))
            kv.pushpull(name(i), mx.nd.ones((100,)), out=out)
            assert (out == 1 - step / 4).asnumpy().all(), (i, step, out)
    print("right values", "whole" if kv.stats()["units"] == 19 * 3 else "sliced", flush=True)
    if when in ("late", "unnamed"):
        kv.init(name(6), mx.nd.ones((100,)))
        kv.pushpull(name(6), mx.nd.ones((100,)), out=out)
        print("right value of a later key", (out == 0.75).asnumpy().all(), flush=True)
        kv.set_optimizer(named)
except KVStoreError as error:
    print("refused:", error, flush=True)
    try:
        kv.push(name(4), mx.nd.ones((100,)))
    except (KVStoreError, mx.MXNetError) as again:
        print("refused:", again, flush=True)
"""


@pytest.mark.parametrize("kind, when", [("number", "early"), ("text", "early"), ("number", "all")])
def test_keys_from_before_the_store_was_wrapped_are_sent_whole_and_the_log_says_so(kind, when):
    """'all': the optimizer is from before as well."""
    result = run_cluster(JOB, 2, 1, env={"PROPHET_UNIT": "100"}, args=[kind, when])
    assert all("right values whole" in worker.output for worker in result.workers), result.logs()
    assert result.logs().count("large gradients are not sliced: keys were made before the store was wrapped") == 1, result.logs()


@pytest.mark.parametrize("policy", ["prophet", "off"])
def test_keys_that_came_after_others_are_never_updated_wrongly(policy):
    """The servers know text keys by a number that counts those from before the store was wrapped, which the wrapper has not seen made. With
    the policy off a later key has another number than without the wrapper."""
    result = run_cluster(JOB, 2, 1, env={"PROPHET_UNIT": "100", "PROPHET_POLICY": policy}, args=["text", "late"])
    for worker in result.workers:
        if policy == "off":
            assert "right values" in worker.output and "refused: key 'w6' cannot be added: other keys" in worker.output, result.logs()
        else:
            assert worker.output.count("refused: keys were initialised, or the optimizer was set, before the store was wrapped") == 2


@pytest.mark.parametrize("policy", ["off", "prophet"])
def test_a_later_key_is_right_where_no_optimizer_is_there(policy):
    result = run_cluster(SUMS, 2, 1, env={"PROPHET_POLICY": policy})
    assert all("sums True" in worker.output for worker in result.workers), result.logs()


def test_a_later_key_is_right_where_the_optimizer_knows_none_by_its_number():
    """And an optimizer that may know numbers is refused from then on."""
    result = run_cluster(JOB, 2, 1, env={"PROPHET_POLICY": "off"}, args=["text", "unnamed"])
    for worker in result.workers:
        assert "right value of a later key True" in worker.output, result.logs()
        assert "refused: SGD may know parameters by their numbers, which are others here" in worker.output, result.logs()


def test_an_optimizer_from_before_the_store_was_wrapped_is_noticed():
    result = run_cluster(JOB, 2, 1, env={"PROPHET_UNIT": "100"}, args=["number", "optimizer"])
    assert all(
        worker.output.count("the optimizer was set, before the store was wrapped: wrap it first") == 2 for worker in result.workers
    ), result.logs()


SUMS = """
import mxnet as mx
from prophet_mx import ScheduledKVStore

plain = mx.kv.create("dist_sync")
plain.init("w0", mx.nd.ones((100,)))
kv = ScheduledKVStore(plain)
value = mx.nd.zeros((100,))
kv.pushpull("w0", mx.nd.ones((100,)), out=value)
kv.init(["w1", "w2"], [mx.nd.ones((100,))] * 2)
kv.pushpull("w2", mx.nd.ones((100,)) * 3, out=value)
print("sums", (value == 6).asnumpy().all())
"""

DIFFERENT_FIRST = """
import mxnet as mx
from prophet_mx import ScheduledKVStore

plain = mx.kv.create("dist_sync")
plain.init("w0", mx.nd.ones((100,)))
kv = ScheduledKVStore(plain)
kv.init("w1", mx.nd.ones((100,)))
kv.set_optimizer(mx.optimizer.create("sgd", learning_rate=0.125, param_idx2name={i: f"w{i}" for i in range(7)}))
order = [0, 1] if kv.rank == EARLY else [1, 0]
for step in range(1, 5):
    outs = [mx.nd.zeros((100,)) for _ in order]
    for i in order:
        kv.push(f"w{i}", mx.nd.ones((100,)))
    for i in order:
        kv.pull(f"w{i}", out=outs[i])
    for out in outs:
        assert (out == 1 - step / 4).asnumpy().all(), (step, out)
print("right values", flush=True)
"""


@pytest.mark.parametrize("policy, early", [("prophet", 0), ("prophet", 1), ("off", 0)])  # unscheduled, all workers are alike
def test_workers_whose_first_pushes_are_of_different_keys_meet_alike(policy, early):
    """One worker's first push is of a key from before the wrapping, the other's of one from after it."""
    scheduled = policy != "off"
    result = run_cluster(
        DIFFERENT_FIRST.replace("EARLY", str(early)),
        2,
        1,
        expect=1 if scheduled else 0,
        env={"PROPHET_UNIT": "100", "PROPHET_POLICY": policy},
    )
    if scheduled:
        assert "'w0' was not initialised through this store (which has 1 keys)" in result.logs()
    else:
        assert all("right values" in worker.output for worker in result.workers), result.logs()


ORDERED = """
import mxnet as mx
from prophet_mx import ScheduledKVStore

plain = mx.kv.create("dist_sync")
plain.init([0, 1], [mx.nd.ones((100,))] * 2)
kv = ScheduledKVStore(plain)
kv.set_optimizer(mx.optimizer.create("nadam"))
value = mx.nd.zeros((100,))
for step in range(2):
    for key in (1, 0):
        kv.pushpull(key, mx.nd.ones((100,)), out=value)
mx.nd.waitall()
print("policy", kv.stats()["policy"])
"""


def test_nothing_is_scheduled_where_the_order_of_updates_matters_for_early_keys_either():
    result = run_cluster(ORDERED, 2, 1)
    assert all("policy off" in worker.output for worker in result.workers), result.logs()
