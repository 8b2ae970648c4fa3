"""Jobs on emulated GPUs end as those on processors do."""

import pytest

from support.cluster import run_cluster
from support.faults import ABORT, JOB, LATE, LOAD, SHORT, FaultJob


@pytest.fixture
def on_gpus(emulated):
    return {**emulated, "DEVICE": "gpu"}


@pytest.mark.alone
def test_a_killed_server_ends_the_workers_with_code_75(on_gpus):
    with FaultJob(2, 2, {**on_gpus, **SHORT, "PROPHET_STALL_ABORT": str(ABORT)}) as job:
        job.runs(10, 40)
        killed = job.kill("server 1")
        assert job.codes(ABORT + LATE + LOAD, killed) == [75, 75], job.logs()


@pytest.mark.alone
def test_a_worker_that_ends_alone_is_told_of_and_the_job_ends(on_gpus):
    env = {**on_gpus, **SHORT, "PROPHET_STALL_ABORT": str(ABORT)}
    result = run_cluster(JOB, 2, 1, env=env, args=["ends_alone"], timeout=60, expect=None)
    assert result.exit_code == 75, result.logs()
