"""Jobs end: by themselves, in time, with the exit code Python gives, with the exact weights, and the servers got what was pushed last.

Each script, ending and policy is here once; ``make starts`` draws 300 of all their combinations, in the environment that users have.
"""

import pytest

from benchmarks.starts import Start, run
from prophet_mx.launcher.launch import free_port
from support.cluster import ROLE, package_env, run_cluster
from support.paths import SCRIPTS

COLLECTED = SCRIPTS / "collected.py"
LIMIT = 60  # seconds; a job takes 3 to 5 where it has two cores to itself


@pytest.mark.parametrize(
    "start",
    [
        Start("module", "return", 2, 2, "prophet", sliced=True),
        Start("loop", "return", 3, 1, "prophet-icpp21", sliced=False, hooked=True),
        Start("loop", "push", 3, 2, "prophet", sliced=True),
        Start("module", "push", 2, 1, "priority", sliced=True, hooked=True),
        Start("loop", "raise", 2, 1, "fifo", sliced=False),
        Start("module", "exit", 2, 1, "credit", sliced=True),
    ],
    ids=lambda start: "-".join(map(str, start)),
)
def test_a_job_ends_by_itself_with_pythons_exit_code_and_the_values_are_exact_on_workers_and_servers(start):
    wrong = run(start, (ROLE,), package_env(), LIMIT)
    assert not wrong, "\n".join(wrong)


def test_the_same_in_the_environment_that_users_have():
    """No package is left out, nothing is compiled beforehand, and the scheduler is a Python that runs the script, too; that it is so is
    shown in test_user_environment.py."""
    wrong = run(Start(ending="push", workers=2, servers=1), limit=LIMIT)
    assert not wrong, "\n".join(wrong)


def test_stores_that_the_collector_frees_in_threads_of_prophet_mx(tmp_path):
    pytest.importorskip("prometheus_client")
    result = run_cluster(COLLECTED, 4, 1, env={"DMLC_INTERFACE": "lo"}, args=[tmp_path, free_port()], timeout=LIMIT, grace=20)
    assert not any(process.ended_by_launcher for process in result.processes), result.logs()
    assert all("left: []" in worker.output and "Error" not in worker.output for worker in result.workers), result.logs()
