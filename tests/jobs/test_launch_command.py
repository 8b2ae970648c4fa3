"""The command ``prophet-mx launch`` as a user runs it: signals, output."""

import os
import pty
import re
import select
import signal
import subprocess
import time
from textwrap import dedent

import pytest

from support.cluster import package_env
from support.commands import prophet_mx, python
from support.processes import PROPHET_MX, PYTHON, alive, assert_gone, running_launcher

LIMIT = 30  # seconds: far more than anything here needs
GRACE = ["--grace", "5"]

SLEEPER = """
    import os, subprocess, time
    print('pid', os.getpid(), flush=True)
    print('pid', subprocess.Popen(['sleep', '1000']).pid, flush=True)
    time.sleep(1000)
    """


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_to_the_launcher_ends_the_job(number, code):
    with running_launcher(GRACE, SLEEPER, 8, LIMIT) as (launcher, pids):
        assert all(map(alive, pids))
        launcher.send_signal(number)
        assert launcher.wait(LIMIT) == code
        assert_gone(pids)


def test_a_second_ctrl_c_does_not_wait():
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + dedent(SLEEPER)
    with running_launcher(GRACE, stubborn, 8, LIMIT) as (launcher, pids):
        started = time.monotonic()
        launcher.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert launcher.poll() is None
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(LIMIT) == 130
        assert time.monotonic() - started < 4  # --grace is 5
        assert_gone(pids)


def test_nothing_is_left_when_the_launcher_is_killed():
    with running_launcher(GRACE, SLEEPER, 8, LIMIT) as (launcher, pids):
        launcher.kill()
        assert launcher.wait(LIMIT) == -signal.SIGKILL
        assert_gone(pids)


def test_nothing_is_left_when_nobody_reads_the_output():
    with running_launcher(
        GRACE,
        """
            import os, time
            print('pid', os.getpid(), flush=True)
            while True:
                print('y', flush=True)
                time.sleep(0.01)
            """,
        4,
        LIMIT,
    ) as (launcher, pids):
        launcher.stdout.close()
        assert launcher.wait(LIMIT) == 141
        assert_gone(pids)


def test_exit_code_and_labels():
    done = prophet_mx(
        "launch", "-n", "2", "-s", "1", "--", *PYTHON, "import os, sys; print(os.environ['DMLC_ROLE']); print('err', file=sys.stderr)"
    )
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == [
        "[scheduler] err",
        "[scheduler] scheduler",
        "[server 0] err",
        "[server 0] server",
        "[worker 0] err",
        "[worker 0] worker",
        "[worker 1] err",
        "[worker 1] worker",
    ]
    failed = prophet_mx("launch", "-n", "1", "--", *PYTHON, "import os, sys; sys.exit(4 * (os.environ['DMLC_ROLE'] == 'worker'))")
    assert failed.returncode == 4
    assert "[launch] worker 0 ended with code 4" in failed.stdout


def test_arguments_of_the_command_are_not_the_launchers():
    done = prophet_mx("launch", "-n", "1", "--", *PYTHON, "import sys; print(sys.argv[1:])", "-n", "9", "--", "--help", "a b")
    assert done.stdout.splitlines()[-1].endswith("['-n', '9', '--', '--help', 'a b']")
    assert len(done.stdout.splitlines()) == 3


def test_lines_of_different_processes_are_never_mixed():
    done = prophet_mx(
        "launch",
        "-n",
        "4",
        "--",
        *PYTHON,
        dedent("""
        import os, sys, time
        role = os.environ['DMLC_ROLE'][0]
        for i in range(50):
            for part in (role * 3000, role * 3000 + '\\n'):
                sys.stdout.write(part)
                sys.stdout.flush()
                time.sleep(0.001)
        """),
    )
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert len(lines) == 6 * 50
    assert all(re.fullmatch(r"\[(worker \d\] w{6000}|server 0\] s{6000}|scheduler\] s{6000})", line) for line in lines)


BAR = """
    import os, sys, time
    if os.environ['DMLC_ROLE'] == 'worker':
        for i in range(5):
            sys.stderr.write('\\r%d of 4' % i)
            time.sleep(0.1)
        sys.stderr.write('\\n')
    """


def test_a_progress_bar_in_a_log_is_one_line():
    done = prophet_mx("launch", "-n", "2", "--", *PYTHON, dedent(BAR))
    assert sorted(done.stdout.splitlines()) == ["[worker 0] 4 of 4", "[worker 1] 4 of 4"]


def test_a_progress_bar_on_a_terminal_is_redrawn_in_place():
    leader, follower = pty.openpty()
    launcher = subprocess.Popen(
        [*PROPHET_MX, "launch", "-n", "2", "--", *PYTHON, dedent(BAR)],
        env={**os.environ, **package_env()},
        stdin=subprocess.DEVNULL,
        stdout=follower,
    )
    os.close(follower)
    text, deadline = b"", time.monotonic() + LIMIT
    try:
        while True:
            assert select.select([leader], [], [], max(0, deadline - time.monotonic()))[0], text
            try:
                text += os.read(leader, 65536)
            except OSError:  # the other side is closed
                break
        assert launcher.wait(LIMIT) == 0
    finally:
        launcher.kill()
        launcher.wait()
        os.close(leader)
    shown = text.decode()
    assert "[worker 0] 4 of 4\r\n" in shown and "[worker 1] 4 of 4\r\n" in shown
    [redrawn] = set(re.findall(r"\r\x1b\[K(\[worker \d\]) [1-3] of 4", shown))  # the first that drew one
    assert redrawn in ("[worker 0]", "[worker 1]")


def test_the_command_does_not_import_mxnet():
    """It would hang forever where DMLC_ROLE is 'server' or 'scheduler'."""
    code = "import sys, prophet_mx.cli.main; prophet_mx.cli.main.parser(); sys.exit('mxnet' in sys.modules or 'numpy' in sys.modules)"
    python("-c", code, env={"DMLC_ROLE": "server"}, expect=0)


BABBLER = """
    import os, time
    print('pid', os.getpid(), flush=True)
    if os.environ['DMLC_ROLE'] == 'worker':
        for _ in range(40000):
            print('x' * 99)
    else:
        time.sleep(1000)
    """


def test_a_reader_that_stands_still_holds_up_neither_timeout_nor_restart_nor_signals(tmp_path):
    """The pipe is full, and so are the buffers: workers wait, and the launcher does not."""
    with running_launcher(["--grace", "1", "--timeout", "3", "--log-dir", str(tmp_path)], BABBLER, 4, LIMIT) as (launcher, pids):
        began = time.monotonic()
        assert launcher.wait(LIMIT) == 124
        assert time.monotonic() - began < 8  # 3, and 1 in which it waits for the reader
        assert_gone(pids)
    assert "bytes of output were dropped" in (tmp_path / "launch.log").read_text()

    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + dedent(BABBLER)
    with running_launcher(["--grace", "20"], stubborn, 4, LIMIT) as (launcher, pids):
        time.sleep(1)
        for number in (signal.SIGTERM, signal.SIGINT):
            assert launcher.poll() is None
            launcher.send_signal(number)
            began = time.monotonic()
            time.sleep(0.3)
        assert launcher.wait(LIMIT) == 143
        assert time.monotonic() - began < 5
        assert_gone(pids)

    dying = BABBLER.replace("time.sleep(1000)", "time.sleep(1); os.kill(os.getpid(), 9)", 1)
    with running_launcher(["--grace", "1", "--restarts", "1", "--log-dir", str(tmp_path)], dying, 4, LIMIT) as (launcher, _):
        deadline = time.monotonic() + LIMIT
        while "restart 1 of 1" not in (tmp_path / "launch.log").read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(LIMIT) == 130
        assert "restart 1 of 1" in (tmp_path / "launch.log").read_text()


def test_a_reader_that_is_late_gets_all_that_a_job_has_written():
    code = "import os\nif os.environ['DMLC_ROLE'] == 'worker':\n    for i in range(20000): print('%099d' % i)\nprint('pid 1')"
    with running_launcher(["--grace", "1"], code, 1, LIMIT) as (launcher, _):
        time.sleep(2)
        rest = b"".join(iter(lambda: os.read(launcher.stdout.fileno(), 1 << 16), b"")).decode()
        assert launcher.wait(LIMIT) == 0
        assert all(f"[worker {index}] {19999:099d}\n" in rest for index in (0, 1))
