"""``prophet-mx launch --hostfile``: real ssh connections to a real sshd on loopback, that has two addresses and so is two hosts."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import psutil
import pytest

from prophet_mx.launcher.hosts import Host
from prophet_mx.launcher.ssh import Ssh
from support.cluster import package_env
from support.commands import prophet_mx, run
from support.processes import PYTHON, alive, assert_gone, pids_in, running_launcher
from support.sshd import ADDRESSES, running_sshd

LIMIT = 50  # seconds: far more than any job here needs
NASTY = "two words, 'single' \"double\" $HOME `id` ; \\ & * \t\u00fc"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """Arguments of ``prophet-mx launch`` for a job on two hosts with room for two workers each."""
    folder = tmp_path_factory.mktemp("sshd")
    (folder / "hosts").write_text("# two names of this machine\n" + "".join(f"{address} slots=2\n" for address in ADDRESSES))
    with running_sshd(folder) as options:
        yield [
            "--hostfile",
            str(folder / "hosts"),
            "--env",
            "PYTHONPATH",
            *(word for option in options for word in ("--ssh-option", option)),
        ]


def launch(*arguments, **more):
    return prophet_mx("launch", "--grace", "5", *arguments, env=more, timeout=LIMIT)


def running(hosts, code, count):
    return running_launcher(["--grace", "1", "--timeout", str(LIMIT), *hosts], code, count, LIMIT)


SLEEPER = """
    import os, subprocess, sys, time
    print('pid', os.getpid(), 'and pid', subprocess.Popen(['sleep', '1000']).pid, flush=True)
    """


def test_a_real_job_on_two_hosts(hosts, tmp_path):
    """MXNet's own servers and sockets; a script that knows nothing of prophet_mx; what it sees of its environment, and what all users
    see of it: the command in its own process and in the launcher's, variables nowhere."""
    (tmp_path / "train.py").write_text(
        dedent("""
        import json, os, psutil, sys
        import mxnet as mx
        kv = mx.kv.create('dist_sync')
        kv.init('a', mx.nd.zeros((400, 500)))
        value = mx.nd.zeros((400, 500))
        for _ in range(3):
            kv.push('a', mx.nd.ones((400, 500)) * (kv.rank + 1))
            kv.pull('a', out=value)
            value.wait_to_read()
        names = ('DMLC_NODE_HOST', 'DMLC_PS_ROOT_URI', 'OMP_NUM_THREADS', 'PROPHET_POLICY', 'NASTY', 'MXNET_HERE', 'PORT', 'OTHER')
        for process in psutil.process_iter(['cmdline']):
            words = process.info['cmdline'] or []
            if os.environ['SECRET'] in str(words):
                print('SHOWN', words)
            if sys.argv[1] in words and words[1:2] != ['train.py'] and 'launch' not in words:
                print('SHOWN', words)
        print('SEEN ' + json.dumps({'rank': kv.rank, 'sum': [float(value.min().asscalar()), float(value.max().asscalar())],
                                    'units': kv.stats()['units'], 'arguments': sys.argv[1:], 'folder': os.getcwd(),
                                    'env': {name: os.environ.get(name) for name in names}}))
        """)
    )
    done = launch(
        *hosts,
        "-n",
        "2",
        "-s",
        "2",
        "--schedule",
        "--chdir",
        str(tmp_path),
        "--env",
        "NASTY",
        "--env",
        "OMP_NUM_THREADS=1",
        "--env",
        "SECRET",
        "--",
        sys.executable,
        "train.py",
        NASTY,
        NASTY=NASTY,
        SECRET="only-in-the-environment-51ac",
        PROPHET_POLICY="fifo",
        MXNET_HERE="forwarded",
        PORT="1",
        OTHER="not forwarded",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    seen = [json.loads(line.partition("SEEN ")[2]) for line in done.stdout.splitlines() if "SEEN " in line]
    assert sorted(worker["rank"] for worker in seen) == [0, 1], done.stdout
    assert sorted(worker["env"]["DMLC_NODE_HOST"] for worker in seen) == sorted(ADDRESSES)
    assert all(f"[worker {worker['rank']}] SEEN {json.dumps(worker)}" in done.stdout for worker in seen), done.stdout
    for worker in seen:
        assert worker["sum"] == [3.0, 3.0] and worker["units"] >= 3
        assert worker["arguments"] == [NASTY] and worker["folder"] == str(tmp_path)
        assert worker["env"] == {
            "DMLC_NODE_HOST": worker["env"]["DMLC_NODE_HOST"],
            "DMLC_PS_ROOT_URI": ADDRESSES[0],
            "OMP_NUM_THREADS": "1",
            "PROPHET_POLICY": "fifo",
            "NASTY": NASTY,
            "MXNET_HERE": "forwarded",
            "PORT": None,
            "OTHER": None,
        }
    assert "SHOWN" not in done.stdout, done.stdout
    assert "[launch] 127.0.0.1: scheduler, server 0, worker 1" in done.stdout  # ranks go by addresses, the greatest first
    assert "[launch] 127.0.0.2: server 1, worker 0" in done.stdout
    assert done.stdout.count("--schedule: the store 'dist_sync' is scheduled, policy fifo") == 2


def test_a_remote_failure_ends_all_processes_on_all_hosts(hosts):
    done = launch(
        *hosts,
        "-n",
        "2",
        "-s",
        "1",
        "--",
        *PYTHON,
        dedent(SLEEPER)
        + dedent("""
        if os.environ['DMLC_NODE_HOST'] == '127.0.0.2':
            time.sleep(1.5)
            sys.exit('it broke')
        time.sleep(1000)
        """),
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "[worker 0] it broke" in done.stdout
    assert "[launch] worker 0 ended with code 1; ending scheduler, server 0, worker 1" in done.stdout
    pids = pids_in(done.stdout)
    assert len(pids) == 8, done.stdout
    assert_gone(pids, within=1.0)


@pytest.mark.parametrize("stubborn", [False, True])
def test_ctrl_c_ends_all_processes_on_all_hosts(hosts, stubborn):
    ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if stubborn else ""
    with running(hosts, ignore + dedent(SLEEPER) + "time.sleep(1000)", 8) as (launcher, pids):
        assert all(map(alive, pids))
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(LIMIT) == 130
        assert_gone(pids, within=0.5)  # when the launcher returns, they have ended


def test_nothing_is_left_on_the_hosts_when_the_launcher_is_killed(hosts):
    with running(hosts, dedent(SLEEPER) + "time.sleep(1000)", 8) as (launcher, pids):
        launcher.kill()
        launcher.wait(LIMIT)
        assert_gone(pids)


def test_nothing_is_left_when_the_other_side_of_a_connection_is_killed(hosts):
    """The program that watches over a process on its host is killed: the process dies, and so does the job."""
    with running(hosts, dedent(SLEEPER) + "print('parent', os.getppid(), flush=True); time.sleep(1000)", 8) as (launcher, pids):
        parent = int(Path(f"/proc/{pids[-2]}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[1])
        os.kill(parent, signal.SIGKILL)
        assert launcher.wait(LIMIT) not in (0, 124)
        assert_gone(pids)


def test_a_host_that_falls_silent_ends_the_job(hosts):
    """Its sshd is stopped, as if the host were cut off; the job ends without it, and the host's processes once the host is back."""
    impatient = ["--ssh-option", "ServerAliveInterval=1", "--ssh-option", "ServerAliveCountMax=1"]
    with running(impatient + hosts, dedent(SLEEPER) + "time.sleep(1000)", 8) as (launcher, pids):
        sshd = next(process for process in psutil.Process(pids[-2]).parents() if process.name().startswith("sshd"))
        sshd.suspend()
        try:
            began = time.monotonic()
            assert launcher.wait(LIMIT) == 255
            assert time.monotonic() - began < LIMIT / 2
            assert "ended with code 255 (ssh's code for a connection that failed); ending" in launcher.stdout.read().decode()
            assert_gone(pids[:-2], within=0.5)
            assert all(map(alive, pids[-2:]))  # on the silent host
        finally:
            sshd.resume()
        assert_gone(pids)


def test_a_lost_connection_starts_the_job_again_on_all_hosts(hosts, tmp_path):
    """The program that watches over a process on its host is killed, and with it the connection."""
    code = """
        import os, signal
        role, gpus = os.environ['DMLC_ROLE'], os.environ.get('CUDA_VISIBLE_DEVICES')
        os.write(1, f"{role} {os.environ['DMLC_NODE_HOST']} sees {gpus}\\n".encode())  # all at once: another start may end it at any time
        if role == 'worker' and gpus == '1' and not os.path.exists(os.environ['NOTE']):
            open(os.environ['NOTE'], 'w').close()
            os.kill(os.getppid(), signal.SIGKILL)
        """
    logs = tmp_path / "logs"
    where = ["-H", f"{ADDRESSES[0]},{ADDRESSES[1]}:2", *hosts[2:]]
    more = ["-s", "1", "--restarts", "1", "--log-dir", str(logs), "--gpus-per-worker", "1", "--env", f"NOTE={tmp_path / 'note'}"]
    done = launch(*where, *more, "--", *PYTHON, dedent(code))
    assert done.returncode == 0, done.stdout + done.stderr
    files = {path.name: path.read_text() for path in logs.iterdir()}
    assert sorted(files) == ["launch.log", "scheduler.log", "server-0.log", "worker-0.log", "worker-1.log", "worker-2.log"]
    for index, (host, gpu) in enumerate([(1, 0), (1, 1), (0, 0)]):
        seen = [line for line in files[f"worker-{index}.log"].splitlines() if line.startswith("worker")]
        assert seen and set(seen) == {f"worker {ADDRESSES[host]} sees {gpu}"}, files
    assert "[launch] worker 1 ended with code 255 (ssh's code for a connection that failed)" in files["launch.log"], files
    again = files["worker-1.log"].partition("[launch] restart 1 of 1 in 1 s\n")[2]
    assert "worker 127.0.0.2 sees 1" in again.splitlines(), files


def test_what_cannot_work_says_why(hosts, tmp_path):
    for arguments, code, parts in [
        (["--chdir", "/no/such/folder"], 2, ["/no/such/folder", "cannot be entered", "--chdir"]),
        (["--python", "/no/such/python"], 127, ["/no/such/python"]),
        (["--ssh-option", "Port=1"], 255, ["ended with code 255 (ssh's code for a connection that failed)"]),
        ([], 2, ["no-such-program"]),
    ]:
        # ssh takes the first value of an option.
        done = launch(*arguments, *hosts, "-n", "1", "-s", "1", "--", "no-such-program")
        assert done.returncode == code, done.stdout + done.stderr
        assert all(part in done.stdout for part in parts), done.stdout


def test_a_command_of_the_dry_run_does_what_the_launcher_would(hosts):
    done = launch(
        *hosts,
        "-n",
        "1",
        "-s",
        "1",
        "--dry-run",
        "--port",
        "12345",
        "--",
        *PYTHON,
        "import os, sys; print(sys.argv[1:], os.environ['DMLC_ROLE'])",
        NASTY,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[::2] == ["# scheduler on 127.0.0.1", "# server 0 on 127.0.0.1", "# worker 0 on 127.0.0.1"]
    worker = subprocess.Popen(["bash", "-c", lines[5]], env={**os.environ, **package_env()}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert worker.stdout.readline().decode() == f"{[NASTY]} worker\n"
    finally:
        worker.communicate(timeout=LIMIT)


# --- without a host that answers ---


def test_a_dry_run_on_this_machine_can_be_run_in_a_shell():
    done = launch(
        "-n",
        "2",
        "--dry-run",
        "--port",
        "12345",
        "--env",
        "A=secret",
        "--env",
        "PROPHET_UNIT=5000",
        "--",
        *PYTHON,
        "import os; print(os.environ['DMLC_ROLE'], os.environ['DMLC_PS_ROOT_PORT'], os.environ['A'])",
    )
    lines = done.stdout.splitlines()
    assert lines[::2] == ["# scheduler", "# server 0", "# worker 0", "# worker 1"]
    assert "A=" in lines[-1] and "secret" not in done.stdout and "PROPHET_UNIT=5000" in lines[-1]
    assert run("sh", "-c", lines[-1], env={"A": NASTY}).stdout == f"worker 12345 {NASTY}\n"


needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh (Debian: apt-get install openssh-client)")


@needs_ssh
def test_a_host_that_never_answers_is_a_failure(tmp_path):
    (tmp_path / "hosts").write_text("127.0.0.1\n")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        done = prophet_mx(
            "launch",
            "--hostfile",
            str(tmp_path / "hosts"),
            "--ssh-option",
            f"Port={silent.getsockname()[1]}",
            "--ssh-option",
            "ConnectTimeout=1",
            "--",
            "true",
        )
    assert done.returncode == 255, done.stdout + done.stderr
    assert "ended with code 255 (ssh's code for a connection that failed)" in done.stdout


@needs_ssh
def test_a_host_has_a_minute_to_answer():
    """As ssh itself understands what the launcher tells it: it gives up when one question more than the allowed number is due."""
    command = Ssh((), "python", "/").command(Host("gpu1"), {})
    known = run(command[0], "-G", *command[1:-1]).stdout
    options = dict(line.split(None, 1) for line in known.splitlines() if " " in line)
    assert int(options["serveraliveinterval"]) * (int(options["serveralivecountmax"]) + 1) == 60
    assert int(options["connecttimeout"]) < 60 and options["batchmode"] == "yes"
