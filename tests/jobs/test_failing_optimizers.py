"""An optimizer that the servers cannot load, or whose updates fail. MXNet's servers print a traceback and answer as if nothing were wrong:
workers would train on sums, or with weights that no longer change."""

import os

import pytest

from support.cluster import package_env, run_cluster
from support.paths import SCRIPTS

JOB = """
import logging, sys, time, types
import mxnet as mx
from failing import Failing
from prophet_mx import ScheduledKVStore

logging.basicConfig(level=logging.INFO)

class Mine(mx.optimizer.SGD):
    __module__ = "lacking"

sys.modules["lacking"] = types.ModuleType("lacking")    # a package that only the workers have
sys.modules["lacking"].Mine = Mine
kind, iterations = sys.argv[1], int(sys.argv[2])
whole = {"policy": "priority", "unit": 100_000}         # as an optimizer that is not MXNet's own needs it
kv = ScheduledKVStore(mx.kv.create("dist_sync"), **whole)
value = mx.nd.ones((300,))
kv.init(["a", "b"], [value, value])
if kind != "late":
    kv.set_optimizer(Mine() if kind == "lacking" else Failing(int(kind), learning_rate=0.125))
began = time.monotonic()
for iteration in range(iterations):
    for key in "ba":
        kv.pushpull(key, mx.nd.ones((300,)), out=value)
    value.wait_to_read()
    if kind == "late" and iteration == 2 and kv.rank == 1:
        kv.set_optimizer(Mine())
    if time.monotonic() - began > 20:
        break
    time.sleep(0.002)
print("trained", iteration, flush=True)
"""
FAILED = "the optimizer on the servers has failed, and parameters are not updated: "


def run(*args, servers=1):
    path = os.pathsep.join([package_env()["PYTHONPATH"], str(SCRIPTS)])
    return run_cluster(JOB, 2, servers, args=args, expect=1, env={"PYTHONPATH": path}, timeout=90)


def test_all_workers_raise_why_the_servers_cannot_load_an_optimizer():
    job = run("lacking", 1, servers=2)
    cause = f"KVStoreError: {FAILED}a server could not load the optimizer Mine: ModuleNotFoundError: No module named 'lacking'"
    for worker in job.workers:
        assert cause in worker.output, job.logs()
        assert "its class has to be in a module that they can import" in worker.output and "trained" not in worker.output, job.logs()


@pytest.mark.parametrize("updates, iterations", [(10, 10**6), (9, 5)])
def test_all_workers_say_which_optimizer_failed_and_why_and_end(updates, iterations):
    """In the middle of training, and with the last update."""
    job = run(updates, iterations)
    cause = f"{FAILED}an update by Failing failed: ZeroDivisionError: no more of these"
    for worker in job.workers:
        assert cause in worker.output, job.logs()
        assert ("trained" in worker.output) == (iterations == 5), job.logs()
    if iterations > 5:
        assert any(f"KVStoreError: {cause}" in worker.output for worker in job.workers), job.logs()
    assert any("ZeroDivisionError: no more of these" in process.output for process in job.processes if process.role == "server")


def test_a_server_that_cannot_load_an_optimizer_and_has_no_way_to_say_so_ends():
    """The first optimizer of the job, set after the first push."""
    job = run("late", 10**6)
    servers = [process.output for process in job.processes if process.role == "server"]
    assert any("prophet_mx: a server could not load the optimizer Mine: ModuleNotFoundError" in output for output in servers), job.logs()
    assert not any("trained" in worker.output for worker in job.workers), job.logs()


EMPTY = """
import mxnet as mx
from prophet_mx import ScheduledKVStore

mx.npx.set_np()
kv = ScheduledKVStore(mx.kv.create("dist_sync"))
empty, value = mx.np.zeros((0,)), mx.np.ones((3,))
kv.init(["empty", "value"], [empty, value])
kv.set_optimizer(mx.optimizer.create("adam"))
for _ in range(4):
    kv.pushpull("empty", mx.np.zeros((0,)), out=empty)
    kv.pushpull("value", mx.np.ones((3,)), out=value)
print("trained", (value < 1).all())
"""


def test_an_array_without_elements_fails_no_job():
    """MXNet's servers have no numpy semantics, so that most optimizers fail for it, as they do without prophet_mx."""
    job = run_cluster(EMPTY, 2, 1)
    assert all("trained True" in worker.output for worker in job.workers), job.logs()
    assert "inferring shapes failed" in job.logs()
