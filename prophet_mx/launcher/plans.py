"""Which processes a ``dist_sync`` job has, with which variables: on this machine or on several hosts. Nothing is started here."""

import os
import random
import shutil
import socket
from collections import Counter
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Sequence

from ..cuda import with_libraries
from ..errors import LaunchError, need_whole, not_allowed
from ..machine import can_listen, local_port_range
from ..place import VARIABLE, value_of
from .environment import GPU_VARIABLE, defaults, gpu_shares, with_hook
from .hosts import Host, by_rank, place
from .processes import label_of
from .ssh import Ssh, addresses, forwarded

MAX_PROCESSES = 512
HOST = "127.0.0.1"
GRACE = 10.0


@dataclass(frozen=True)
class PlannedProcess:
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


def plan_job(
    command: Sequence[str],
    workers: int = 2,
    servers: int = 1,
    *,
    env: Optional[Mapping[str, str]] = None,
    role_env: Optional[Mapping[str, Mapping[str, str]]] = None,
    schedule: bool = False,
    gpus_per_worker: Optional[int] = None,
    port: Optional[int] = None,
) -> List[PlannedProcess]:
    """The processes of a job on this machine; the parameters are those of :func:`~prophet_mx.launcher.launch.run_job`, and the
    scheduler's ``port``: by default a free one, another at each call."""
    for name, value in (("workers", workers), ("servers", servers)):
        need_whole(name, value, 1, MAX_PROCESSES, error=LaunchError)
    if not command or shutil.which(command[0]) is None:
        name = repr(command[0]) if command else "''"
        script = bool(command) and command[0].endswith(".py") and os.path.isfile(command[0])
        raise LaunchError(
            f"the command {name} cannot be started; allowed: a program on the PATH, or a path to an executable file"
            + (f"; did you mean {'python ' + command[0]!r}?" if script else "")
        )
    if port is not None and not can_listen(port, HOST):
        raise LaunchError(not_allowed(f"--port {port}", "a free port, or no --port to find one", ": this process cannot listen on it"))
    port, *ports = [port, *free_ports(workers)] if port is not None else free_ports(workers + 1)
    ports.sort()
    common = {**_job_env(HOST, port, workers, servers), "DMLC_NODE_HOST": HOST, **(env or {})}
    given = {**os.environ, **common}.get(GPU_VARIABLE)
    gpus = gpu_shares(workers, gpus_per_worker, given) if gpus_per_worker else []
    plans = []
    for role, count in (("scheduler", 1), ("server", servers), ("worker", workers)):
        for index in range(count):
            own = {**defaults(os.environ, workers, role), **common, "DMLC_ROLE": role}
            if role == "worker":
                own[VARIABLE] = value_of(index, ports[index])
                if gpus:
                    own[GPU_VARIABLE] = gpus[index]
            for key in (role, label_of(role, index)):
                own.update((role_env or {}).get(key, {}))
            if schedule:
                own["PYTHONPATH"] = with_hook({**os.environ, **own})["PYTHONPATH"]
            own.update(with_libraries({**os.environ, **own}, command))
            plans.append(PlannedProcess(role, index, command, own))
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
    gpus_per_worker: Optional[int] = None,
    port: Optional[int] = None,
) -> List[PlannedProcess]:
    """The processes of a job on ``hosts``, reached by ``ssh``.

    ``workers`` is by default the number of slots, ``servers`` that of hosts with a worker; ``env`` is added to what is forwarded of
    this process's environment (:data:`prophet_mx.launcher.ssh.FORWARDED`). The ``port`` is by default another one at each call.

    Raises LaunchError if there are too few slots or GPUs, or too many slots, or the address of a host cannot be found out.
    """
    placed, workers, servers = place(hosts, workers, servers)
    if workers > MAX_PROCESSES:
        raise LaunchError(
            f"{workers} workers, one for each slot of the hosts, are not allowed; allowed: --workers N, up to {MAX_PROCESSES}"
        )
    reached_at = addresses(hosts, ssh.options)
    if "DMLC_INTERFACE" not in {**forwarded(os.environ), **(env or {})}:
        placed = by_rank(placed, reached_at)
    ports = sorted(random.SystemRandom().sample(_candidates(), workers))  # a worker takes another where one is taken
    common = {**forwarded(os.environ), **(env or {}), **_job_env(reached_at[0], port or free_port(), workers, servers)}
    sharers = Counter(process.host for process in placed if process.role == "worker")
    gpus = {host: iter(gpu_shares(count, gpus_per_worker, common.get(GPU_VARIABLE))) for host, count in sharers.items() if gpus_per_worker}
    plans = []
    for process in placed:
        own = {**common, "DMLC_ROLE": process.role}
        if process.role == "worker":
            own[VARIABLE] = value_of(process.index, ports[process.index])
            if gpus:
                own[GPU_VARIABLE] = next(gpus[process.host])
        if "DMLC_INTERFACE" not in own:  # the user's own choice of the network would lose against an address
            own["DMLC_NODE_HOST"] = reached_at[process.host]
        host, spec = hosts[process.host], ssh.spec(command, own, grace, sharers[process.host], schedule)
        plans.append(PlannedProcess(process.role, process.index, ssh.command(host, own), own, host, spec))
    return plans


def free_port() -> int:
    """A port on the loopback interface that nothing listens on now, below the range of ports that connections get by themselves.

    A port of that range could be taken by a connection before the scheduler listens on it: even by a worker's own attempt to
    reach the scheduler, which then talks to itself.
    """
    return free_ports(1)[0]


def free_ports(count: int) -> List[int]:
    """As many different ones, in any order."""
    candidates, found = _candidates(), []
    for port in random.SystemRandom().sample(candidates, count + 200):
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            found.append(port)
        if len(found) == count:
            return found
    raise LaunchError(f"only {len(found)} of {count + 200} ports tried from {candidates[0]} to {candidates[-1]} on {HOST} are free")


def _candidates() -> range:
    low, _ = local_port_range()
    return range(10000, low) if low > 11000 else range(1024, 65536)


def _job_env(address: str, port: int, workers: int, servers: int) -> Dict[str, str]:
    """Where all processes of a job meet."""
    return {"DMLC_PS_ROOT_URI": address, "DMLC_PS_ROOT_PORT": str(port), "DMLC_NUM_WORKER": str(workers), "DMLC_NUM_SERVER": str(servers)}
