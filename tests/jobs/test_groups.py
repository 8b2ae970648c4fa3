"""Small gradients share messages: nobody hangs, and the result is that of plain dist_sync, whichever are missing, late or waited for."""

import json

import pytest

from support.cluster import run_cluster
from support.paths import SCRIPTS

JOB = SCRIPTS / "groups.py"
KINDS = "usual,missing,frozen,waits,chained,orders,reads,pushes,slow,devices"


@pytest.fixture
def train(tmp_path):
    """Run the job; what its workers wrote."""

    def run(mode, kind, optimizer, dtype="float32", workers=2, servers=1, env=None):
        path = tmp_path / f"{mode}-{{rank}}.json"
        result = run_cluster(JOB, workers, servers, args=[mode, kind, optimizer, dtype, path], env=env, timeout=60)
        return [json.loads((tmp_path / f"{mode}-{rank}.json").read_text()) for rank in range(workers)], result.logs()

    return run


def check_same(train, *job, **options):
    plain, _ = train("plain", *job, **options)
    scheduled, logs = train("scheduled", *job, **options)
    for ours, theirs in zip(scheduled, plain):
        assert [kind for kind, digests in ours["digests"].items() if digests != theirs["digests"][kind]] == [], logs
        assert ours["stats"]["failure"] == "", logs


def test_sums_are_those_of_plain_dist_sync(train):
    check_same(train, KINDS, "none")


def test_momentum_on_the_servers_is_that_of_plain_dist_sync(train):
    check_same(train, KINDS, "sgd", servers=2)


def test_a_schedule_of_the_learning_rate_is_that_of_plain_dist_sync(train):
    check_same(train, "usual", "sgd")


@pytest.mark.parametrize("optimizer, dtype", [("adam", "float32"), ("sgd", "float16")])
def test_other_optimizers_with_members_missing(train, optimizer, dtype):
    check_same(train, "missing", optimizer, dtype)


def test_three_workers_in_orders_of_their_own_end_with_the_same_sums(train):
    scheduled, logs = train("scheduled", "missing", "none", workers=3, servers=2)
    assert scheduled[0]["digests"] == scheduled[1]["digests"] == scheduled[2]["digests"], logs


def test_a_usual_job_sends_far_fewer_messages_than_gradients(train):
    scheduled, logs = train("scheduled", "usual", "none")
    single, _ = train("scheduled", "usual", "none", env={"PROPHET_GROUPS": "off"})
    assert scheduled[0]["stats"]["units"] < 0.6 * single[0]["stats"]["units"], logs
    assert scheduled[0]["digests"] == single[0]["digests"]


SUMS = """
import hashlib, sys
import mxnet as mx
import numpy as np

mode, dtype, who = sys.argv[1:]
kv = mx.kv.create("dist_sync")
if mode == "scheduled":
    from prophet_mx import ScheduledKVStore
    kv = ScheduledKVStore(kv, unit=16000)
sizes = {"a": 8, "b": 64, "c": 100, "d": 3, "e": 500, "f": 30}

def made(seed, size):                               # sums are exact also in half precision: see docs/limits.md
    return mx.nd.array(np.random.RandomState(seed).randint(-64, 65, size) / 64, dtype=dtype)

def train(step, keys):
    for place, key in reversed(list(enumerate(keys))):
        kv.pushpull(key, made(1000 * step + 50 * kv.rank + place, sizes[key]), out=outs[key], priority=-place)
    mx.nd.waitall()
    for key in sizes:
        print(kv.rank, "saw", step, key, hashlib.sha256(outs[key].asnumpy().tobytes()).hexdigest(), flush=True)

def optimize(workers, name, **settings):
    kv._barrier()
    if kv.rank in workers:
        kv.set_optimizer(mx.optimizer.create(name, multi_precision=dtype == "float16", **settings))
    kv._barrier()

for place, (key, size) in enumerate(sizes.items()):
    kv.init(key, made(place, size))
outs = {key: mx.nd.zeros((size,), dtype=dtype) for key, size in sizes.items()}
train(0, "abcde")
train(1, "ab")                                      # and nobody has pushed f
first, second = [(0,), (1,)] if who == "one" else [(0, 1), (1,)]
optimize(first, "sgd", learning_rate=0.5)           # of which no push sees anything
optimize(first, "dcasgd", learning_rate=0.1)        # which keeps copies of the weights
train(2, "acf")
train(3, "abcdef")
optimize(second, "sgd", learning_rate=0.1, momentum=0.9)
train(4, "abcdf")
train(5, "abcdef")
"""


@pytest.mark.parametrize("dtype, who", [("float32", "one"), ("float16", "all")])
def test_an_optimizer_that_comes_after_sums_finds_the_values_that_plain_dist_sync_has(dtype, who):
    """Of members that were missing in the last message, or in all of them."""
    seen = []
    for mode in ("plain", "scheduled"):
        job = run_cluster(SUMS, 2, 1, args=[mode, dtype, who], env={"PROPHET_BANDWIDTH": "1Gbit", "PROPHET_LOG_LEVEL": "info"}, timeout=30)
        seen.append(sorted(line for worker in job.workers for line in worker.output.splitlines() if " saw " in line))
    assert len(seen[0]) == 2 * 6 * 6 and seen[1] == seen[0], job.logs()
    assert all("6 small ones share " in worker.output for worker in job.workers), job.logs()


STATISTICS = """
import mxnet as mx
from mxnet import autograd, gluon
from prophet_mx import ScheduledKVStore

net = gluon.nn.HybridSequential(prefix="n_")
with net.name_scope():
    for _ in range(3):
        net.add(gluon.nn.Dense(8, in_units=8), gluon.nn.BatchNorm(in_channels=8))
net.initialize()
trainer = gluon.Trainer(net.collect_params(), "sgd", kvstore=ScheduledKVStore(mx.kv.create("dist_sync"), unit=16384))
for _ in range(2):
    with autograd.record():
        loss = net(mx.nd.ones((4, 8))).sum()
    loss.backward()
    trainer.step(4)
mx.nd.waitall()
"""


def test_running_statistics_are_in_no_message():
    """Trainer makes keys of them as well."""
    job = run_cluster(STATISTICS, 2, 1, env={"PROPHET_BANDWIDTH": "1Gbit", "PROPHET_LOG_LEVEL": "info"})
    for worker in job.workers:
        assert "12 small ones share 1 messages" in worker.output, job.logs()


FORKED = """
import os, time
import mxnet as mx
from prophet_mx import ScheduledKVStore

kv = ScheduledKVStore(mx.kv.create("dist_sync"), unit=16000)
outs = {key: mx.nd.zeros((64,)) for key in "abc"}
for key, out in outs.items():
    kv.init(key, out)
for step in range(4):
    for place, key in enumerate("abc" if kv.rank == 0 else "cba"):
        kv.pushpull(key, mx.nd.full((64,), step + kv.rank), out=outs[key])
        if step and place == 0 and kv.rank == 0:
            child = os.fork()
            if not child:
                os._exit(0)
            os.waitpid(child, 0)
        elif step and kv.rank == 1:
            time.sleep(0.2)
    for key, out in outs.items():
        assert (out == 2 * step + 1).asnumpy().all(), (step, key, out)
print("all right", flush=True)
"""


def test_a_fork_while_a_member_has_to_be_sent_once_more():
    """MXNet waits in the fork for what was pushed, and no other thread can run Python code meanwhile. Worker 1's message comes without
    worker 0's member, which therefore needs another."""
    job = run_cluster(FORKED, 2, 1, env={"PROPHET_BANDWIDTH": "1Gbit", "PROPHET_LOG_LEVEL": "info"}, timeout=40)
    assert all("3 small ones share 1 messages" in worker.output and "all right" in worker.output for worker in job.workers), job.logs()
