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


KEPT = """
import atexit, builtins, os

def last():
    print("last:", kv.type, kv.rank, kv.num_workers, kv.stats()["iterations"] > 0)
    for call in (lambda: kv.pushpull("a", value, out=value), lambda: kv.push("a", value), lambda: kv.pull("a", out=value), kv._barrier):
        try:
            print("not refused:", call())
        except Exception as error:
            print("refused:", error)

if os.environ["DMLC_ROLE"] == "worker":
    atexit.register(last)               # before MXNet's handler and ours: it runs after them

import mxnet as mx
from prophet_mx import ScheduledKVStore

kv = ScheduledKVStore(mx.kv.create("dist_sync"))
if kv.rank == 0:
    mx.hook = lambda: 0                 # a function refers to the program, and MXNet's module to the function
else:
    builtins.kept = kv
value = mx.nd.ones((1000,))
kv.init("a", value)
for _ in range(3):
    kv.pushpull("a", mx.nd.ones((1000,)), out=value)
assert (value.asnumpy() == 2).all()
"""


def test_a_store_that_outlives_mxnets_modules_has_ended_with_the_program():
    """The interpreter frees it only after it has cleared some of the modules, or after all."""
    result = run_cluster(KEPT, 2, 1, timeout=LIMIT)
    lasts = sorted(line for worker in result.workers for line in worker.output.splitlines() if line.startswith("last:"))
    assert lasts == ["last: dist_sync 0 2 True", "last: dist_sync 1 2 True"], result.logs()
    for worker in result.workers:
        assert worker.output.count("refused: ") == worker.output.count("this store has been freed") == 4, result.logs()
        assert "Traceback" not in worker.output and "Exception ignored" not in worker.output, result.logs()
