"""Starts an MXNet ``dist_sync`` job on this machine: ``prophet-mx launch``, and :func:`run_job` for programs and tests.

Scheduler and servers run the same command as the workers. That is MXNet's way: a process whose ``DMLC_ROLE`` is not ``worker``
becomes what its role says at ``import mxnet``, and from then on runs nothing of the script.
"""
import argparse
import math
import os
import random
import shutil
import signal
import socket
import sys
import threading
from contextlib import contextmanager
from typing import Dict, Iterator, List, Mapping, Optional, Sequence

from .console import Console, terminal_size
from .errors import LaunchError
from .job import Job, JobResult, ProcessResult, Sink, label_of

__all__ = ["JobResult", "ProcessResult", "add_parser", "free_port", "run_job"]

MAX_PROCESSES = 512
HOST = "127.0.0.1"
GRACE = 10.0
EXIT_BROKEN_PIPE = 128 + signal.SIGPIPE

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_job(command: Sequence[str], workers: int = 2, servers: int = 1, *, env: Optional[Mapping[str, str]] = None,
            role_env: Optional[Mapping[str, Mapping[str, str]]] = None, timeout: Optional[float] = None, grace: float = GRACE,
            sink: Optional[Sink] = None, capture: bool = True, signals: bool = False) -> JobResult:
    """Run ``command`` as one scheduler, ``servers`` servers and ``workers`` workers on this machine, and wait for the end.

    >>> run_job(["true"], workers=1).exit_code
    0

    Parameters
    ----------
    env : added to this process's environment for all processes.
    role_env : added on top for a role or for one process: ``{"server": {...}, "worker 1": {...}}``.
    timeout : seconds after which the job is ended, None for no limit.
    grace : seconds between SIGTERM and SIGKILL, and those that scheduler and servers get after the last worker.
    sink : called with each line of output, in this thread.
    capture : keep the output for the result.
    signals : take SIGINT, SIGTERM and SIGHUP as a request to end the job (in the main thread only).

    Raises
    ------
    LaunchError
        a number is out of range, or the command cannot be started. Nothing is left running, whatever is raised.
    """
    for name, value in (("workers", workers), ("servers", servers)):
        if not 1 <= value <= MAX_PROCESSES:
            raise LaunchError(f"{name}={value} is not allowed; allowed: a whole number from 1 to {MAX_PROCESSES}")
    if not command or shutil.which(command[0]) is None:
        name = repr(command[0]) if command else "''"
        raise LaunchError(f"the command {name} cannot be started; allowed: a program on the PATH, or a path to an executable file")
    common = _job_env(free_port(), workers, servers)
    common.update(env or {})
    with _caught_signals(signals) as seen:
        job = Job(sink, capture, grace, seen)
        try:
            for role, count in (("scheduler", 1), ("server", servers), ("worker", workers)):
                for index in range(count):
                    own = {**common, "DMLC_ROLE": role}
                    for key in (role, label_of(role, index)):
                        own.update((role_env or {}).get(key, {}))
                    own.pop("PORT", None)  # ps-lite would take it as the port that every process has to listen on
                    job.start(role, index, command, own)
            job.wait(timeout)
        finally:
            job.close()
        return job.result()


def free_port() -> int:
    """A port on the loopback interface that nothing listens on now, below the range of ports that connections get by themselves.

    A port of that range could be taken by a connection before the scheduler listens on it: even by a worker's own attempt to
    reach the scheduler, which then talks to itself.
    """
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
            low = int(file.read().split()[0])
    except (OSError, ValueError):
        low = 32768
    candidates = range(10000, low) if low > 11000 else range(1024, 65536)
    for port in random.SystemRandom().sample(candidates, 200):
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise LaunchError(f"none of 200 ports tried from {candidates[0]} to {candidates[-1]} on {HOST} is free")


def _job_env(port: int, workers: int, servers: int) -> Dict[str, str]:
    """The environment that all processes of a job share, except their role."""
    env = dict(os.environ)
    env.pop("DMLC_INTERFACE", None)
    env.update(DMLC_PS_ROOT_URI=HOST, DMLC_PS_ROOT_PORT=str(port), DMLC_NODE_HOST=HOST,
               DMLC_NUM_WORKER=str(workers), DMLC_NUM_SERVER=str(servers))
    # Their output is a pipe: without this a Python program's lines would appear long after they were printed.
    env.setdefault("PYTHONUNBUFFERED", "1")
    # Workers share this machine's cores; OpenMP's default, all cores for each, makes them spin in each other's way.
    env.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // workers)))
    return env


@contextmanager
def _caught_signals(enabled: bool) -> Iterator[List[int]]:
    """The stop signals received so far, as a list that grows; a signal that is ignored (nohup) stays ignored."""
    seen: List[int] = []
    previous = {}
    if enabled and threading.current_thread() is threading.main_thread():
        # Ignored SIGCHLD would make the kernel throw exit codes away.
        previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number in _STOP_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                previous[number] = signal.signal(number, lambda received, frame: seen.append(received))
    try:
        yield seen
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


_EPILOG = """\
example, two workers and one server on this machine:
  prophet-mx launch -n 2 -s 1 -- python train.py --kv-store dist_sync

Every process runs COMMAND with the DMLC_* variables of its role; scheduler and
servers are what MXNet makes of it at 'import mxnet'. Each line of output comes
with its process in front, as in '[worker 0] ...'. That number is the launcher's
count: the job's scheduler gives out the ranks (kv.rank). OMP_NUM_THREADS, unless
set already, is set to this machine's cores divided by the workers. PORT is
removed, because ps-lite would make every process listen on it.

exit codes:
  0        all workers ended with 0
  N        the first process that failed ended with N, or signal N - 128 killed it
  2        wrong argument, or COMMAND cannot be started
  75       a worker got no answer for PROPHET_STALL_ABORT seconds
  124      --timeout passed
  130      Ctrl-C; 143: SIGTERM; 129: SIGHUP
No process of the job is left running."""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add ``launch`` to the command ``prophet-mx``."""
    parser = subparsers.add_parser(
        "launch", help="run a dist_sync job on this machine", usage="prophet-mx launch [-n N] [-s N] [options] -- COMMAND ...",
        description="Start a scheduler, servers and workers of an MXNet dist_sync job on this machine and wait for the end.",
        epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--workers", type=_count, default=2, metavar="N", help="number of workers (default: 2)")
    parser.add_argument("-s", "--servers", type=_count, default=1, metavar="N", help="number of servers (default: 1)")
    parser.add_argument("--timeout", type=_seconds, metavar="SECONDS", help="end the job after this time (default: never)")
    parser.add_argument("--grace", type=_seconds, default=GRACE, metavar="SECONDS",
                        help="time to end between SIGTERM and SIGKILL, and for scheduler and servers after the last worker "
                             f"(default: {GRACE:g})")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="the training command and its arguments")
    parser.set_defaults(run=_run)


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= MAX_PROCESSES:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: a whole number from 1 to {MAX_PROCESSES}")
    return number


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: a positive number of seconds")
    return number


def _run(arguments: argparse.Namespace) -> int:
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise LaunchError("no command given; allowed: a program and its arguments after '--', as in '-- python train.py'")
    label = label_of("worker", 0)
    env = {}
    if sys.stdout.isatty():  # the width for progress bars, which cannot ask a pipe
        columns, lines = terminal_size()
        env = {"COLUMNS": str(max(columns - len(f"[{label}] "), 1)), "LINES": str(lines)}
    sys.stdout.reconfigure(errors="replace")
    try:
        return run_job(command, arguments.workers, arguments.servers, env=env, timeout=arguments.timeout, grace=arguments.grace,
                       sink=Console(sys.stdout, bar_of=label), capture=False, signals=True).exit_code
    except BrokenPipeError:  # nobody reads on, as in '| head'; keep the interpreter from writing to the pipe at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
