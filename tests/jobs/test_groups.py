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
        result = run_cluster(
            JOB, workers, servers, args=[mode, kind, optimizer, dtype, path], env={"PROPHET_GROUPS": "auto", **(env or {})}, timeout=60
        )
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
