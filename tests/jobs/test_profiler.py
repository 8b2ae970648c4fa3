"""MXNet's own profiler, on workers and servers: a job trains with it as without it, and its traces show the operations of prophet_mx."""

import re

from support.cluster import run_cluster

PROFILED = """
import os, sys
os.chdir(sys.argv[1])                   # a server's trace is written where the server was started
import mxnet as mx
from prophet_mx import ScheduledKVStore

kv = ScheduledKVStore(mx.kv.create("dist_sync"), unit=32768)
sizes = {"small": 7, "other": 9, "sliced": 40000}
values = {name: mx.nd.zeros(size) for name, size in sizes.items()}
for name, value in values.items():
    kv.init(name, value)
mx.profiler.set_config(profile_all=True, filename=f"worker{kv.rank}.json", aggregate_stats=kv.rank == 1)
mx.profiler.set_config(profile_all=True, filename="server.json", profile_process="server")
for process in ("worker", "server"):
    mx.profiler.set_state("run", profile_process=process)
for iteration in range(6):
    for name, value in values.items():
        kv.pushpull(name, mx.nd.full(sizes[name], iteration), out=value)
    mx.nd.waitall()
    assert all((value.asnumpy() == 2 * iteration).all() for value in values.values()), iteration
for process in ("worker", "server"):
    mx.profiler.set_state("stop", profile_process=process)
if kv.rank == 1:
    print(mx.profiler.dumps())
for process in ("worker", "server"):
    mx.profiler.dump(profile_process=process)
print("profiled")
"""

OPERATIONS = {"prophet_gate", "prophet_done", "prophet_join", "prophet_hold", "prophet_turn", "prophet_reply"}


def test_a_job_with_mxnets_profiler_trains_and_its_traces_name_our_operations(tmp_path):
    """Units of every kind: in a group, whole, and large enough for the thread of their own."""
    result = run_cluster(PROFILED, 2, 1, args=[tmp_path], timeout=60)
    assert all("profiled" in worker.output for worker in result.workers), result.logs()
    for trace in ("worker0.json", "worker1.json"):
        assert set(re.findall(r'"name": "(\w+)"', (tmp_path / trace).read_text())) >= OPERATIONS
    assert sum("prophet_gate" in worker.output for worker in result.workers) == 1  # the table of rank 1
    assert '"cat": "operator"' in (tmp_path / "rank0_server.json").read_text()
