"""Processes that a launcher has started: which there are, that they end, and a launcher to send signals to."""

import os
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from textwrap import dedent
from typing import Any, Iterable, Iterator, List, Sequence, Tuple

import psutil

from prophet_mx.launcher.launch import JobResult, run_job
from support.cluster import package_env

PYTHON = [sys.executable, "-S", "-c"]
PROPHET_MX = [sys.executable, "-m", "prophet_mx"]


JOB_LIMIT = 30  # seconds: far more than any job of job() needs, so that a hang is a failure and not a hung test run
ME = {"worker 0": {"ME": "0"}, "worker 1": {"ME": "1"}}


def job(code: str, *args: Any, **kwargs: Any) -> JobResult:
    """Run ``code`` as a job, with its role, ``me`` (the variable ME, see above) and some modules at hand."""
    prelude = "import os, signal, subprocess, sys, time\nrole, me = os.environ['DMLC_ROLE'], os.environ.get('ME')\n"
    return run_job(PYTHON + [prelude + dedent(code)], *args, **{"timeout": JOB_LIMIT, "grace": 1.0, **kwargs})


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def pids_in(text: str) -> List[int]:
    return [int(pid) for pid in re.findall(r"pid (\d+)", text)]


def assert_gone(pids: Iterable[int], within: float = 5.0) -> None:
    deadline = time.monotonic() + within
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [pid for pid in pids if alive(pid)] == []


@contextmanager
def running_launcher(options: Sequence[str], code: str, count: int, limit: float) -> Iterator[Tuple["subprocess.Popen[bytes]", List[int]]]:
    """``prophet-mx launch`` with a job of two workers and a server that run ``code``, once ``count`` pids have appeared in its output:
    yields the process and the pids."""
    launcher = subprocess.Popen(
        [*PROPHET_MX, "launch", *options, "-n", "2", "-s", "1", "--", *PYTHON, dedent(code)],
        env={**os.environ, **package_env()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    pids: List[int] = []
    text, deadline = "", time.monotonic() + limit
    try:
        while len(pids) < count:
            assert select.select([launcher.stdout], [], [], max(0, deadline - time.monotonic()))[0], text
            data = os.read(launcher.stdout.fileno(), 65536)
            assert data, f"the launcher ended early: {text}"
            text += data.decode()
            pids = pids_in(text[: text.rfind("\n") + 1])
        yield launcher, pids
    finally:
        launcher.stdout.close()
        if launcher.poll() is None:
            launcher.kill()
        launcher.wait()
        for pid in filter(alive, pids):
            os.kill(pid, signal.SIGKILL)
