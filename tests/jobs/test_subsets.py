"""Jobs in which every iteration trains other parameters, some of which come late."""

import json

import pytest

from support.cluster import run_cluster
from support.paths import SCRIPTS

JOB = SCRIPTS / "subsets.py"
UNIT = 16384  # bytes: up to 15 slices of a parameter


@pytest.fixture
def train(tmp_path):
    """Run the job; what its workers wrote, with all outputs."""

    def run(kind, variant, groups="auto"):
        env = {"PROPHET_UNIT": str(UNIT), "PROPHET_GROUPS": groups}
        result = run_cluster(JOB, 2, 2, args=[kind, variant, tmp_path], env=env)
        return [json.loads((tmp_path / f"{kind}-{variant}-{rank}.json").read_text()) for rank in range(2)], result.logs()

    return run


def check_scheduled(workers, logs, grouped=False):
    """The message of a group has all of its bytes, whichever of its members it carries."""
    for worker in workers:
        stats = worker["stats"]
        assert stats["failure"] == "", logs
        assert stats["bytes"] >= worker["pushed"] if grouped else stats["bytes"] == worker["pushed"]
        assert stats["units"] >= stats["bytes"] / UNIT  # sliced
    assert "scheduling has ended" not in logs


def test_sums_of_random_subsets_are_exact_and_scheduled_to_the_end(train):
    workers, logs = train("sums", "scheduled", groups="off")
    check_scheduled(workers, logs)
    assert workers[0]["digests"] == workers[1]["digests"]


def test_momentum_of_random_subsets_is_that_of_plain_dist_sync(train):
    (plain, _), _ = train("momentum", "plain")
    workers, logs = train("momentum", "scheduled")
    assert all(worker["digests"] == plain["digests"] for worker in workers)
    check_scheduled(workers, logs, grouped=True)
