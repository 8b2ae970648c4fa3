"""Jobs that start again, after they lost a process or got no answer. Most are tiny programs without MXNet."""

import os
import re
import shutil
import signal
import sys
import threading
import time
from textwrap import dedent

import psutil
import pytest

import prophet_mx.launcher.launch as launch_module
from prophet_mx.launcher.launch import run_job
from support.cluster import ROLE, package_env
from support.paths import ROOT
from support.processes import JOB_LIMIT as LIMIT
from support.processes import ME, assert_gone, job, pids_in, running_launcher

NOTED = """
    def start(name):
        # How often this process has been started before.
        file = os.path.join(os.environ['NOTES'], name)
        open(file, 'a').write('x')
        return os.path.getsize(file) - 1
    """


@pytest.fixture
def restarting(tmp_path, monkeypatch):
    """Runs code that knows ``start(name)``: the result, and all lines as (label, text)."""
    monkeypatch.setattr(launch_module, "FIRST_PAUSE", 0.1)

    def run(code, restarts, **more):
        lines = []
        result = job(
            dedent(NOTED) + dedent(code),
            role_env=ME,
            env={"NOTES": str(tmp_path)},
            restarts=restarts,
            sink=lambda label, text, final: lines.append((label, text)),
            **more,
        )
        return result, lines

    return run


def restarts_in(lines):
    return [text for label, text in lines if label == "launch" and "restart" in text]


def test_after_75_or_a_lost_process_the_job_starts_again_at_another_port(restarting):
    result, lines = restarting(
        """
        print('port', os.environ['DMLC_PS_ROOT_PORT'], flush=True)
        if me == '1':
            number = start(me)
            if number == 0: os.kill(os.getpid(), signal.SIGKILL)
            if number == 1: os.kill(os.getpid(), signal.SIGSEGV)
            if number == 2: sys.exit(75)
            if number == 3: sys.exit(128 + signal.SIGKILL)  # as a shell says it
        """,
        5,
    )
    assert (result.exit_code, result.reason) == (0, ""), lines
    assert restarts_in(lines) == [f"restart {n} of 5 in {0.1 * 2 ** (n - 1):g} s" for n in (1, 2, 3, 4)]
    assert len({text for label, text in lines if label == "worker 1"}) == 5
    assert len(result.processes) == 4 and len({process.output for process in result.processes}) == 1


def test_when_no_restart_is_left_the_exit_code_is_that_of_the_last_start(restarting):
    result, lines = restarting("if me == '0': sys.exit(75 if start(me) < 2 else 137)\ntime.sleep(1000)", 2)
    assert (result.exit_code, result.reason) == (137, "worker 0 ended with code 137"), lines
    assert len(restarts_in(lines)) == 2


@pytest.mark.parametrize(
    "code, exit_code",
    [
        ("sys.exit(1) if me == '0' else time.sleep(1000)", 1),
        ("sys.exit(255) if me == '0' else time.sleep(1000)", 255),
        ("role == 'server' and (time.sleep(0.5), os.kill(os.getpid(), signal.SIGKILL))", 137),
    ],
    ids=["a program that fails", "255, which here is no connection's", "a server that is killed after the workers"],
)
def test_what_another_start_would_not_help_ends_the_job(restarting, code, exit_code):
    result, lines = restarting(code, 3, grace=5.0)
    assert (result.exit_code, restarts_in(lines)) == (exit_code, []), lines


def test_the_timeout_is_for_all_starts_together(restarting):
    began = time.monotonic()
    result, lines = restarting("if me == '0' and start(me) == 0: sys.exit(75)\ntime.sleep(1000)", 3, timeout=3.0)
    assert (result.exit_code, result.reason) == (124, "the job had not ended after 3 s"), lines
    assert len(restarts_in(lines)) == 1 and 3 <= time.monotonic() - began < LIMIT / 2


def test_a_job_that_cannot_be_started_again_ends_as_it_did(tmp_path, monkeypatch):
    monkeypatch.setattr(launch_module, "FIRST_PAUSE", 0.1)
    program = tmp_path / "program"
    # It goes away when all have begun: a shell reads its program only after it has started.
    program.write_text(
        f"""#!/bin/sh
cd '{tmp_path}'
[ $DMLC_ROLE = worker ] || {{ touch $DMLC_ROLE; exec sleep 1000; }}
until [ -e scheduler ] && [ -e server ]; do sleep 0.05; done
rm -f program
exit 75
"""
    )
    program.chmod(0o755)
    lines = []
    result = run_job([str(program)], 1, 1, restarts=1, timeout=LIMIT, sink=lambda label, text, final: lines.append(text))
    assert result.exit_code == 75, lines
    assert "cannot be started again" in lines[-1] and str(program) in lines[-1]


def test_ctrl_c_while_the_launcher_waits_before_a_restart():
    code = "import os, sys, time; print('pid', os.getpid(), flush=True); time.sleep(0.5); sys.exit(75)"
    with running_launcher(["--grace", "5", "--restarts", "9"], code, 4, LIMIT) as (launcher, _):
        text = b""
        while b"restart 3 of 9 in 4 s" not in text:
            data = os.read(launcher.stdout.fileno(), 65536)
            assert data, f"the launcher ended early: {text.decode()}"
            text += data
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(LIMIT) == 130
        assert launcher.stdout.read() == b""  # no fourth start
        assert_gone(pids_in(text.decode()))


# --- the examples' checkpoints ---

IMAGENET = ROOT / "examples" / "mxnet-image-classification" / "train_imagenet.py"
EPOCHS = 3
SMALL = ["--network", "mobilenet0.25", "--num-classes", "10", "--image-shape", "3,32,32", "--kv-store", "dist_sync", "--benchmark", "1"]
SMALL += ["--batch-size", "4", "--num-examples", "128", "--num-epochs", str(EPOCHS), "--disp-batches", "1000"]


def train(folder, *more, **options):
    """The example as a job of two workers, with checkpoints in ``folder``."""
    command = [sys.executable, ROLE, str(IMAGENET), *SMALL, "--model-prefix", str(folder / "model"), *more]
    return run_job(command, env=package_env(), timeout=120, grace=5.0, **options)


def server_of_this_process():
    """The one server of the job that this process has started."""
    [server] = [child for child in psutil.Process().children() if child.environ().get("DMLC_ROLE") == "server"]
    return server


def test_after_a_killed_server_the_job_ends_with_the_weights_of_one_that_was_resumed(tmp_path):
    lost, resumed = tmp_path / "lost", tmp_path / "resumed"
    saved = [lost / f"model{rank}-0001.params" for rank in ("", "-1")]
    killed = []

    def kill():
        deadline = time.monotonic() + 60
        while not all(path.exists() for path in saved) and time.monotonic() < deadline:
            time.sleep(0.02)
        server_of_this_process().kill()
        killed.append(True)

    thread = threading.Thread(target=kill)
    thread.start()
    lines = []
    result = train(lost, "--load-epoch", "auto", restarts=1, sink=lambda label, text, final: lines.append(f"[{label}] {text}"))
    thread.join()
    logs = "\n".join(lines)
    assert result.exit_code == 0 and killed, logs
    assert "[launch] server 0 was killed by SIGKILL" in logs and "[launch] restart 1 of 1" in logs
    [epoch] = set(re.findall(r"Loaded checkpoint \S+/model(?:-1)?-(\d+)\.params and optimizer states", logs))
    assert 1 <= int(epoch) < EPOCHS, logs
    # The job that nothing disturbs has that checkpoint alone.
    resumed.mkdir()
    for path in [*lost.glob(f"*-{epoch}.*"), *lost.glob("*.json")]:
        shutil.copy(str(path), str(resumed / path.name))
    other = train(resumed, "--load-epoch", str(int(epoch)))
    assert other.exit_code == 0, other.logs()
    for rank in ("", "-1"):
        for kind in ("params", "states"):
            name = f"model{rank}-{EPOCHS:04d}.{kind}"
            assert (lost / name).read_bytes() == (resumed / name).read_bytes(), f"{name} differs\n{logs}"
    assert (lost / f"model-{EPOCHS:04d}.params").read_bytes() != (lost / f"model-{epoch}.params").read_bytes()
