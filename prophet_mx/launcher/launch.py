"""Starts an MXNet ``dist_sync`` job, on this machine or on several hosts: :func:`run_job` for programs and tests.

The command ``prophet-mx launch`` is in :mod:`prophet_mx.cli.launch`.

Scheduler and servers run the same command as the workers. That is MXNet's way: a process whose ``DMLC_ROLE`` is not ``worker``
becomes what its role says at ``import mxnet``, and from then on runs nothing of the script.
"""

import os
import random
import shutil
import signal
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Dict, Iterator, List, Mapping, Optional, Sequence

from ..errors import LaunchError
from ..machine import local_port_range
from .environment import LISTEN_VARIABLE, defaults
from .hook import with_hook
from .hosts import Host, Placed, place
from .job import Job, JobResult, ProcessResult, Sink
from .processes import STOP_SIGNALS, label_of
from .ssh import Ssh, addresses, forwarded

__all__ = ["JobResult", "LaunchError", "Plan", "ProcessResult", "free_port", "plan_job", "run_job"]

MAX_PROCESSES = 512
HOST = "127.0.0.1"
GRACE = 10.0
AT_ONCE = 8  # connections to one host that are opened without a pause: its sshd refuses more (MaxStartups)


@dataclass(frozen=True)
class Plan:
    """One process of a job: ``command`` with the variables ``env``; on another host through an ssh client that is given ``spec``.

    ``env`` is what is added to, or replaced in, this process's environment, or the environment that ``host`` gives.
    """

    role: str
    index: int
    command: Sequence[str]
    env: Mapping[str, str]
    host: Optional[Host] = None
    spec: Optional[bytes] = None

    @property
    def label(self) -> str:
        """As :func:`~prophet_mx.launcher.processes.label_of` gives it."""
        return label_of(self.role, self.index)


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
) -> JobResult:
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
    schedule : wrap the dist_sync stores that the processes make (:mod:`prophet_mx.mxnet.automatic`).

    Raises
    ------
    LaunchError
        a number is out of range, or the command cannot be started. Nothing is left running, whatever is raised.
    """
    plans = plan_job(command, workers, servers, env=env, role_env=role_env, schedule=schedule)
    return run_plans(plans, timeout=timeout, grace=grace, sink=sink, capture=capture, signals=signals)


def run_plans(
    plans: Sequence[Plan],
    *,
    timeout: Optional[float] = None,
    grace: float = GRACE,
    sink: Optional[Sink] = None,
    capture: bool = True,
    signals: bool = False,
) -> JobResult:
    """Run the processes that :func:`plan_job` or :func:`plan_hosts` gives; the other parameters are those of :func:`run_job`."""
    with _caught_signals(signals) as seen:
        job = Job(sink, capture, grace, seen)
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
            job.wait(timeout)
        finally:
            job.close()
        return job.result()


def plan_job(
    command: Sequence[str],
    workers: int = 2,
    servers: int = 1,
    *,
    env: Optional[Mapping[str, str]] = None,
    role_env: Optional[Mapping[str, Mapping[str, str]]] = None,
    schedule: bool = False,
    port: Optional[int] = None,
) -> List[Plan]:
    """The processes of a job on this machine; the parameters are those of :func:`run_job`, and the scheduler's ``port``."""
    for name, value in (("workers", workers), ("servers", servers)):
        if not 1 <= value <= MAX_PROCESSES:
            raise LaunchError(f"{name}={value} is not allowed; allowed: a whole number from 1 to {MAX_PROCESSES}")
    if not command or shutil.which(command[0]) is None:
        name = repr(command[0]) if command else "''"
        raise LaunchError(f"the command {name} cannot be started; allowed: a program on the PATH, or a path to an executable file")
    common = {**_job_env(HOST, port or free_port(), workers, servers), "DMLC_NODE_HOST": HOST, **(env or {})}
    plans = []
    for role, count in (("scheduler", 1), ("server", servers), ("worker", workers)):
        for index in range(count):
            own = {**defaults(os.environ, workers, role), **common, "DMLC_ROLE": role}
            for key in (role, label_of(role, index)):
                own.update((role_env or {}).get(key, {}))
            if schedule:
                own["PYTHONPATH"] = with_hook({**os.environ, **own})["PYTHONPATH"]
            plans.append(Plan(role, index, command, own))
    return plans


def plan_hosts(
    command: Sequence[str],
    hosts: Sequence[Host],
    ssh: Ssh,
    workers: Optional[int] = None,
    servers: Optional[int] = None,
    *,
    env: Optional[Mapping[str, str]] = None,
    grace: float = GRACE,
    schedule: bool = False,
    port: Optional[int] = None,
) -> List[Plan]:
    """The processes of a job on ``hosts``, reached by ``ssh``.

    ``workers`` is by default the number of slots, ``servers`` that of hosts with a worker; ``env`` is added to what is forwarded of
    this process's environment (:data:`prophet_mx.launcher.ssh.FORWARDED`).

    Raises
    ------
    LaunchError
        there are too few slots, or the address of a host cannot be found out.
    """
    placed, workers, servers = place(hosts, workers, servers)
    reached_at = addresses(hosts, ssh.options)
    common = {**forwarded(os.environ), **(env or {}), **_job_env(reached_at[0], port or free_port(), workers, servers)}
    return [
        _plan_remote(
            process,
            command,
            hosts[process.host],
            ssh,
            common,
            reached_at[process.host],
            grace,
            schedule,
            sum(other.role == "worker" and other.host == process.host for other in placed),
        )
        for process in placed
    ]


def _plan_remote(
    process: Placed,
    command: Sequence[str],
    host: Host,
    ssh: Ssh,
    common: Mapping[str, str],
    address: str,
    grace: float,
    schedule: bool,
    sharers: int,
) -> Plan:
    env = {**common, "DMLC_ROLE": process.role}
    if "DMLC_INTERFACE" not in env:  # the user's own choice of the network would lose against an address
        env["DMLC_NODE_HOST"] = address
    return Plan(process.role, process.index, ssh.command(host, env), env, host, ssh.spec(command, env, grace, sharers, schedule))


def free_port() -> int:
    """A port on the loopback interface that nothing listens on now, below the range of ports that connections get by themselves.

    A port of that range could be taken by a connection before the scheduler listens on it: even by a worker's own attempt to
    reach the scheduler, which then talks to itself.
    """
    low, _ = local_port_range()
    candidates = range(10000, low) if low > 11000 else range(1024, 65536)
    for port in random.SystemRandom().sample(candidates, 200):
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise LaunchError(f"none of 200 ports tried from {candidates[0]} to {candidates[-1]} on {HOST} is free")


def _job_env(address: str, port: int, workers: int, servers: int) -> Dict[str, str]:
    """Where all processes of a job meet."""
    return {"DMLC_PS_ROOT_URI": address, "DMLC_PS_ROOT_PORT": str(port), "DMLC_NUM_WORKER": str(workers), "DMLC_NUM_SERVER": str(servers)}


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
