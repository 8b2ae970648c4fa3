"""What docs/security.md promises: where a job's processes listen, and that no shell sees what a user gives the launcher."""
import re
import sys

import pytest

from cluster import run_cluster
from prophet_mx.launch import run_job

# Worker 0 looks at all processes of the job, which are its siblings.
LISTENING = """
import os, psutil
import mxnet as mx
from prophet_mx import ScheduledKVStore
kv = ScheduledKVStore(mx.kv.create("dist_sync"))
kv.init("w", mx.nd.zeros((3000,)))
kv.pushpull("w", mx.nd.ones((3000,)), out=mx.nd.zeros((3000,)))
mx.nd.waitall()
if kv.rank == 0:
    for process in psutil.Process(os.getppid()).children():
        if "DMLC_ROLE" in process.environ():
            connections = getattr(process, "net_connections", process.connections)
            for connection in connections(kind="inet"):
                if connection.status == psutil.CONN_LISTEN:
                    print("listens:", process.environ()["DMLC_ROLE"], connection.laddr.ip)
kv._barrier()
"""


@pytest.mark.cluster
def test_every_process_of_a_job_on_this_machine_listens_on_the_loopback_only():
    output = run_cluster(LISTENING, 2, 2).logs()
    listening = re.findall(r"listens: (\w+) (\S+)", output)
    assert {role for role, _ in listening} == {"scheduler", "server", "worker"} and len(listening) == 5, output
    assert {address for _, address in listening} == {"127.0.0.1"}


def test_arguments_and_environment_pass_through_no_shell(tmp_path):
    nasty = [f"; touch {tmp_path}/a", f"$(touch {tmp_path}/b)", f"`touch {tmp_path}/c`", "a b'\"\\\n*", "--", "%s"]
    code = "import os, sys; print(repr((sys.argv[1:], os.environ['NASTY'])))"
    result = run_job([sys.executable, "-S", "-c", code, *nasty], 1, 1, env={"NASTY": nasty[1]}, timeout=30, grace=1)
    assert result.exit_code == 0, result.logs()
    for process in result.processes:
        assert process.output.strip() == repr((nasty, nasty[1]))
    assert list(tmp_path.iterdir()) == []
