"""What docs/security.md promises: where a job's processes listen, what is in the list of processes, which files there are, and that no
shell sees what a user gives the launcher."""

import re
import sys

from prophet_mx.launcher.launch import run_job
from support.cluster import run_cluster

SECRET = "only-in-the-environment-8d1f"
FOLDERS = ("HOME", "TMPDIR", "PWD")

# Worker 0 looks at all processes of the job, which are its siblings, and at all command lines.
LOOK = """
import os, psutil, socket
import mxnet as mx
from prophet_mx import ScheduledKVStore
kv = ScheduledKVStore(mx.kv.create("dist_sync"))
kv.init("w", mx.nd.zeros((3000,)))
for _ in range(20):                         # until there is a profile and orders were exchanged
    kv.pushpull("w", mx.nd.ones((3000,)), out=mx.nd.zeros((3000,)))
mx.nd.waitall()
assert kv.stats()["failure"] == "" and os.environ["SECRET"] and os.getcwd() == os.environ["PWD"]
if kv.rank == 0:
    for process in psutil.Process(os.getppid()).children():
        if "DMLC_ROLE" in process.environ():
            connections = getattr(process, "net_connections", process.connections)
            for connection in connections(kind="inet"):
                if connection.status == psutil.CONN_LISTEN or connection.type == socket.SOCK_DGRAM:
                    print("listens:", process.environ()["DMLC_ROLE"], connection.laddr.ip)
    for process in psutil.process_iter(["cmdline"]):
        if os.environ["SECRET"] in str(process.info["cmdline"]):
            print("shown:", process)
    for name in ("HOME", "TMPDIR", "PWD"):
        print("files:", os.listdir(os.environ[name]))
kv._barrier()
"""


def test_a_job_on_this_machine_listens_on_the_loopback_only_shows_no_variable_and_leaves_no_file(tmp_path, monkeypatch):
    folders = {name: tmp_path / name for name in FOLDERS}
    for folder in folders.values():
        folder.mkdir()
    monkeypatch.chdir(folders["PWD"])
    output = run_cluster(LOOK, 2, 2, env={"SECRET": SECRET, **{name: str(folder) for name, folder in folders.items()}}).logs()
    listening = re.findall(r"listens: (\w+) (\S+)", output)
    assert {role for role, _ in listening} == {"scheduler", "server", "worker"}, output
    assert len(listening) == 5, output  # one of ps-lite for each process: prophet_mx itself listens on nothing
    assert {address for _, address in listening} == {"127.0.0.1"}
    assert "shown:" not in output and output.count("files: []") == 3, output
    assert [path for folder in folders.values() for path in folder.rglob("*")] == []


def test_arguments_and_environment_pass_through_no_shell(tmp_path):
    nasty = [f"; touch {tmp_path}/a", f"$(touch {tmp_path}/b)", f"`touch {tmp_path}/c`", "a b'\"\\\n*", "--", "%s"]
    code = "import os, sys; print(repr((sys.argv[1:], os.environ['NASTY'])))"
    result = run_job([sys.executable, "-S", "-c", code, *nasty], 1, 1, env={"NASTY": nasty[1]}, timeout=30, grace=1)
    assert result.exit_code == 0, result.logs()
    for process in result.processes:
        assert process.output.strip() == repr((nasty, nasty[1]))
    assert list(tmp_path.iterdir()) == []
