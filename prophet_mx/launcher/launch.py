"""Starts an MXNet ``dist_sync`` job, on this machine or on several hosts: :func:`run_job` for programs and tests.

The command ``prophet-mx launch`` is in :mod:`prophet_mx.cli.launch`.

Scheduler and servers run the same command as the workers. That is MXNet's way: a process whose ``DMLC_ROLE`` is not ``worker``
becomes what its role says at ``import mxnet``, and from then on runs nothing of the script.
"""

import os
import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import Callable, Dict, Iterator, List, Mapping, Optional, Sequence

from ..errors import LaunchError
from ..place import LISTEN_VARIABLE
from ..runtime import EXIT_TIMEOUT
from .console import LAUNCHER, Sink
from .hosts import Host
from .job import Job, JobResult, ProcessResult, received
from .outlet import HASTE, PATIENCE, Outlet
from .plans import GRACE, PlannedProcess, free_port, plan_job
from .processes import STOP_SIGNALS, TICK

__all__ = ["JobResult", "LaunchError", "PlannedProcess", "ProcessResult", "free_port", "plan_job", "run_job"]

AT_ONCE = 8  # connections to one host that are opened without a pause: its sshd refuses more (MaxStartups)
FIRST_PAUSE, MAX_PAUSE = 1.0, 60.0  # seconds before the first restart; twice as many before each that follows, up to the other


def run_job(
    command: Sequence[str],
    workers: int = 2,
    servers: int = 1,
    *,
    env: Optional[Mapping[str, str]] = None,
    role_env: Optional[Mapping[str, Mapping[str, str]]] = None,
    timeout: Optional[float] = None,
    grace: float = GRACE,
    sink: Optional[Sink] = None,
    capture: bool = True,
    signals: bool = False,
    schedule: bool = False,
    restarts: int = 0,
) -> JobResult:
    """Run ``command`` as one scheduler, ``servers`` servers and ``workers`` workers on this machine, and wait for the end.

    >>> run_job(["true"], workers=1).exit_code
    0

    Parameters
    ----------
    env : added to this process's environment for all processes.
    role_env : added on top for a role or for one process: ``{"server": {...}, "worker 1": {...}}``.
    timeout : seconds after which the job is ended, all its starts together, None for no limit.
    grace : seconds between SIGTERM and SIGKILL, and those that scheduler and servers get after the last worker.
    sink : called with each line of output, in this thread.
    capture : keep the output for the result, that of the last start.
    signals : take SIGINT, SIGTERM and SIGHUP as a request to end the job (in the main thread only).
    schedule : wrap the dist_sync stores that the processes make (:mod:`prophet_mx.mxnet.automatic`).
    restarts : how often the job starts again from the beginning if it ended with 75 or lost a process.

    Raises
    ------
    LaunchError
        a number is out of range, or the command cannot be started. Nothing is left running, whatever is raised.
    """

    def plan() -> List[PlannedProcess]:
        return plan_job(command, workers, servers, env=env, role_env=role_env, schedule=schedule)

    return run_plans(plan(), again=[plan] * restarts, timeout=timeout, grace=grace, sink=sink, capture=capture, signals=signals)


def run_plans(
    plans: Sequence[PlannedProcess],
    *,
    again: Sequence[Callable[[], Sequence[PlannedProcess]]] = (),
    timeout: Optional[float] = None,
    grace: float = GRACE,
    sink: Optional[Sink] = None,
    capture: bool = True,
    signals: bool = False,
    until: Optional[Callable[[], bool]] = None,
    output: Optional[Outlet] = None,
) -> JobResult:
    """Run the processes that :mod:`prophet_mx.launcher.plans` gives; the other parameters are those of :func:`run_job`.

    The job is ended, with 0, once ``until`` says so; it is asked all the time, in this thread.

    ``again`` has a function for each restart that is allowed, which plans it when it is due: with another port, because on a host that
    was cut off something of the lost job may live on and still know the old one.

    ``output`` is where the ``sink`` writes, if that may have to wait for a reader. It is closed when the job has ended.
    """
    began = time.monotonic()
    with _caught_signals(signals) as seen:

        def run(plans: Sequence[PlannedProcess]) -> JobResult:
            job = Job(sink, capture, grace, seen) if output is None else Job(sink, capture, grace, seen, output.room)
            return _run(plans, job, timeout, began, until)

        result = run(plans)
        for number, plan in enumerate(again):
            if not result.lost or seen:
                break
            pause = min(FIRST_PAUSE * 2**number, MAX_PAUSE)
            _say(sink, f"restart {number + 1} of {len(again)} in {pause:g} s")
            _sleep(pause, seen)
            if seen:
                result = replace(result, exit_code=128 + seen[0], reason=received(seen[0]), lost=False)
                break
            try:
                result = run(plan())
            except LaunchError as error:
                _say(sink, f"the job cannot be started again: {error}")
                break
        if output is not None:
            came = len(seen)
            dropped = output.close(HASTE if seen or result.exit_code == EXIT_TIMEOUT else PATIENCE, lambda: len(seen) > came)
            if dropped:  # for the files of --log-dir
                _say(sink, f"{dropped} bytes of output were dropped, because nobody has read them")
        return result


def _run(
    plans: Sequence[PlannedProcess], job: Job, timeout: Optional[float], began: float, until: Optional[Callable[[], bool]]
) -> JobResult:
    """One start of a job, from the first process to the last."""
    opened: Dict[Host, int] = {}
    try:
        for plan in plans:
            own = dict(os.environ)
            if plan.host is None:
                own.pop("DMLC_INTERFACE", None)
                own.update(plan.env)
                own.pop(LISTEN_VARIABLE, None)
            else:
                opened[plan.host] = opened.get(plan.host, 0) + 1
                if opened[plan.host] % AT_ONCE == 0:
                    time.sleep(1)
            job.start(plan.role, plan.index, plan.command, own, plan.spec)
        job.wait(timeout, began, until)
    finally:
        job.close()
    return job.result()


def _say(sink: Optional[Sink], text: str) -> None:
    if sink is not None:
        sink(LAUNCHER, text, True)


def _sleep(seconds: float, seen: Sequence[int]) -> None:
    """Wait, until a signal is seen at the longest."""
    end = time.monotonic() + seconds
    while not seen and time.monotonic() < end:
        time.sleep(TICK)


@contextmanager
def _caught_signals(enabled: bool) -> Iterator[List[int]]:
    """The stop signals received so far, as a list that grows; a signal that is ignored (nohup) stays ignored."""
    seen: List[int] = []
    previous = {}
    if enabled and threading.current_thread() is threading.main_thread():
        # Ignored SIGCHLD would make the kernel throw exit codes away.
        previous[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number in STOP_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                previous[number] = signal.signal(number, lambda received, frame: seen.append(received))
    try:
        yield seen
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
