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
