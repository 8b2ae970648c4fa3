"""The command ``prophet-mx launch`` as a user runs it: signals, output, wrong arguments."""
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from textwrap import dedent

import pytest

from jobs.test_launch import LIMIT, PYTHON, alive, assert_gone, pids_in
from support.cluster import package_env

PROPHET_MX = [sys.executable, "-m", "prophet_mx"]


def cli(*arguments):
    return subprocess.run([*PROPHET_MX, *arguments], env={**os.environ, **package_env()}, timeout=LIMIT,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)


@contextmanager
def running_launcher(code, count):
    """The launcher as a process, once ``count`` pids have appeared in its output: yields the process and the pids."""
    launcher = subprocess.Popen([*PROPHET_MX, "launch", "--grace", "5", "-n", "2", "-s", "1", "--", *PYTHON, dedent(code)],
                                env={**os.environ, **package_env()}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, bufsize=0)
    pids, text, deadline = [], "", time.monotonic() + LIMIT
    try:
        while len(pids) < count:
            assert select.select([launcher.stdout], [], [], max(0, deadline - time.monotonic()))[0], text
            data = os.read(launcher.stdout.fileno(), 65536)
            assert data, f"the launcher ended early: {text}"
            text += data.decode()
            pids = pids_in(text[:text.rfind("\n") + 1])
        yield launcher, pids
    finally:
        launcher.stdout.close()
        if launcher.poll() is None:
            launcher.kill()
        launcher.wait()
        for pid in filter(alive, pids):
            os.kill(pid, signal.SIGKILL)


SLEEPER = """
    import os, subprocess, time
    print('pid', os.getpid(), flush=True)
    print('pid', subprocess.Popen(['sleep', '1000']).pid, flush=True)
    time.sleep(1000)
    """


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_to_the_launcher_ends_the_job(number, code):
    with running_launcher(SLEEPER, 8) as (launcher, pids):
        assert all(map(alive, pids))
        launcher.send_signal(number)
        assert launcher.wait(LIMIT) == code
        assert_gone(pids)


def test_a_second_ctrl_c_does_not_wait():
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + dedent(SLEEPER)
    with running_launcher(stubborn, 8) as (launcher, pids):
        started = time.monotonic()
        launcher.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert launcher.poll() is None
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(LIMIT) == 130
        assert time.monotonic() - started < 4  # --grace is 5
        assert_gone(pids)


def test_nothing_is_left_when_the_launcher_is_killed():
    with running_launcher(SLEEPER, 8) as (launcher, pids):
        launcher.kill()
        assert launcher.wait(LIMIT) == -signal.SIGKILL
        assert_gone(pids)


def test_nothing_is_left_when_nobody_reads_the_output():
    with running_launcher("""
            import os, time
            print('pid', os.getpid(), flush=True)
            while True:
                print('y', flush=True)
                time.sleep(0.01)
            """, 4) as (launcher, pids):
        launcher.stdout.close()
        assert launcher.wait(LIMIT) == 141
        assert_gone(pids)


def test_exit_code_and_labels():
    done = cli("launch", "-n", "2", "-s", "1", "--", *PYTHON,
               "import os, sys; print(os.environ['DMLC_ROLE']); print('err', file=sys.stderr)")
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == [
        "[scheduler] err", "[scheduler] scheduler", "[server 0] err", "[server 0] server",
        "[worker 0] err", "[worker 0] worker", "[worker 1] err", "[worker 1] worker"]
    failed = cli("launch", "-n", "1", "--", *PYTHON, "import os, sys; sys.exit(4 * (os.environ['DMLC_ROLE'] == 'worker'))")
    assert failed.returncode == 4
    assert "[launch] worker 0 ended with code 4" in failed.stdout


def test_arguments_of_the_command_are_not_the_launchers():
    done = cli("launch", "-n", "1", "--", *PYTHON, "import sys; print(sys.argv[1:])", "-n", "9", "--", "--help", "a b")
    assert done.stdout.splitlines()[-1].endswith("['-n', '9', '--', '--help', 'a b']")
    assert len(done.stdout.splitlines()) == 3


def test_lines_of_different_processes_are_never_mixed():
    done = cli("launch", "-n", "4", "--", *PYTHON, dedent("""
        import os, sys, time
        role = os.environ['DMLC_ROLE'][0]
        for i in range(50):
            for part in (role * 3000, role * 3000 + '\\n'):
                sys.stdout.write(part)
                sys.stdout.flush()
                time.sleep(0.001)
        """))
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
    done = cli("launch", "-n", "2", "--", *PYTHON, dedent(BAR))
    assert sorted(done.stdout.splitlines()) == ["[worker 0] 4 of 4", "[worker 1] 4 of 4"]


def test_a_progress_bar_on_a_terminal_is_redrawn_in_place():
    leader, follower = pty.openpty()
    launcher = subprocess.Popen([*PROPHET_MX, "launch", "-n", "2", "--", *PYTHON, dedent(BAR)],
                                env={**os.environ, **package_env()}, stdin=subprocess.DEVNULL, stdout=follower)
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
    [redrawn] = set(re.findall(r"\r\x1b\[K(\[worker \d\]) [1-3] of 4", shown))     # the first that drew one
    assert redrawn in ("[worker 0]", "[worker 1]")


@pytest.mark.parametrize("arguments, parts", [
    ([], ["COMMAND"]),
    (["nonsense"], ["nonsense", "launch"]),
    (["launch"], ["no command", "-- python train.py"]),
    (["launch", "-n", "0", "--", "true"], ["--workers", "'0'", "1 to 512"]),
    (["launch", "-n", "two", "--", "true"], ["--workers", "'two'", "1 to 512"]),
    (["launch", "-s", "-1", "--", "true"], ["--servers", "-1", "1 to 512"]),
    (["launch", "--timeout", "nan", "--", "true"], ["--timeout", "'nan'", "positive number of seconds"]),
    (["launch", "--", "no-such-program"], ["no-such-program", "PATH"]),
    (["launch", "--nosuch", "1", "--", "true"], ["--nosuch"]),
])
def test_a_wrong_argument_is_one_line_and_code_2(arguments, parts):
    done = cli(*arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert all(part in done.stderr for part in parts), done.stderr


def test_help_shows_an_example_and_the_exit_codes():
    overview, launch = cli("--help"), cli("launch", "--help")
    assert overview.returncode == launch.returncode == 0
    assert "example: prophet-mx launch -n 2 -s 1 -- python train.py" in overview.stdout
    assert "prophet-mx launch -n 2 -s 1 -- python train.py" in launch.stdout
    for code in ("124", "130", "143"):
        assert code in launch.stdout


def test_the_command_does_not_import_mxnet():
    """It would hang for ever where DMLC_ROLE is 'server' or 'scheduler'."""
    code = "import sys, prophet_mx.cli.main; prophet_mx.cli.main.parser(); sys.exit('mxnet' in sys.modules or 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **package_env(), "DMLC_ROLE": "server"}, timeout=LIMIT)
    assert done.returncode == 0
