"""Jobs end: with the exit code Python gives, in time, and without being killed."""
import re
from pathlib import Path

import pytest

from cluster import run_cluster
from prophet_mx.launch import free_port

JOB = Path(__file__).parent / "jobs" / "endings.py"
COLLECTED = JOB.with_name("collected.py")
TIMEOUT = 60        # seconds; a job takes 3 to 5 where it has two cores to itself

# The launcher ends a job at its first failure. To see how each worker ends by itself, this stands between the two.
WATCHED = """
    import subprocess, sys
    print("watched: ended with", subprocess.call([sys.executable, *sys.argv[1:]]), flush=True)
"""


def codes(ending):
    """Run a job; the exit code of each worker, and its output."""
    result = run_cluster(WATCHED, 2, 1, args=[JOB, ending], timeout=TIMEOUT, grace=3)
    return [(int(re.search(r"watched: ended with (-?\d+)", worker.output).group(1)), worker.output) for worker in result.workers]


@pytest.mark.parametrize("run", range(20))
def test_twenty_jobs_in_a_row_end_with_code_0(run):
    result = run_cluster(JOB, 2, 1 + run % 2, args=["plain"], timeout=TIMEOUT, grace=20)
    assert all("the last line was reached" in worker.output for worker in result.workers)
    assert not any(process.ended_by_launcher for process in result.processes), result.logs()


@pytest.mark.parametrize("run", range(3))
def test_a_job_that_ends_right_after_pushes_waits_for_them(run):
    result = run_cluster(JOB, 2, 1, args=["push"], timeout=TIMEOUT, grace=20)
    assert not any(process.ended_by_launcher for process in result.processes), result.logs()


@pytest.mark.parametrize("run", range(3))
def test_an_exception_on_every_worker(run):
    for code, output in codes("raise"):
        assert code == 1, output
        assert "RuntimeError: something went wrong" in output


@pytest.mark.parametrize("run", range(3))
def test_sys_exit_in_the_middle_of_an_epoch_on_every_worker(run):
    for code, output in codes("exit"):
        assert code == 3, output


def test_stores_that_the_collector_frees_in_threads_of_prophet_mx(tmp_path):
    pytest.importorskip("prometheus_client")
    result = run_cluster(COLLECTED, 4, 1, env={"DMLC_INTERFACE": "lo"}, args=[tmp_path, free_port()], timeout=TIMEOUT, grace=20)
    assert not any(process.ended_by_launcher for process in result.processes), result.logs()
    assert all("left: []" in worker.output and "Error" not in worker.output for worker in result.workers), result.logs()
