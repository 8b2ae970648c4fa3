"""Lists of hosts, and which process of a job runs on which host: pure, texts and numbers in, values out.

A host file has a host per line, as ``ssh`` takes it, and what is known of it:

    # host            room for workers   address that the other hosts reach it at
    gpu1              slots=4
    train@gpu2        slots=4            address=10.0.0.2

On a command line they are ``gpu1:4,train@gpu2:4``, as MPI and Horovod take them.
"""

import re
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ..errors import LaunchError, not_allowed

MAX_SLOTS = 512

# No leading "-", which ssh would take for an option, and nothing that a shell would take for anything but a word.
_HOST = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9_:\[][A-Za-z0-9_.:%\]-]*")
_ADDRESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Host:
    """A host of the job."""

    name: str  # as given to ssh: a name, an alias of ssh's own configuration, an address, each with ``user@`` or without
    slots: int = 1  # how many workers it has room for
    address: Optional[str] = None  # IPv4 address or name at which the other hosts reach it, None to find it out


@dataclass(frozen=True)
class Placed:
    """A process of the job and the number of its host."""

    role: str
    index: int
    host: int


def parse_hosts(text: str, source: str) -> List[Host]:
    """The hosts of a host file's ``text``; ``source`` names the file in errors.

    >>> parse_hosts("gpu1 slots=2  # the old one", "hosts")
    [Host(name='gpu1', slots=2, address=None)]

    Raises LaunchError if a line is wrong, a host comes twice, or there is none.
    """
    hosts: Dict[str, Host] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where, name = f"{source}, line {number}", words[0]
        if not _HOST.fullmatch(name):
            raise LaunchError(not_allowed(f"{where}: {name!r}", "a host as ssh takes it, such as gpu1 or user@10.0.0.7"))
        if name in hosts:
            raise LaunchError(f"{where}: {name} appears twice; allowed: one line for each host, with slots=N for N workers")
        hosts[name] = Host(name, **_fields(words[1:], where))
    if not hosts:
        raise LaunchError(f"{source} names no host; allowed: one or more lines such as 'gpu1 slots=2'")
    return list(hosts.values())


def parse_host_list(text: str) -> List[Host]:
    """The hosts of a text such as ``gpu1,user@gpu2:4``: the number is that of slots, and 1 without it.

    >>> parse_host_list("gpu1,me@gpu2:4")
    [Host(name='gpu1', slots=1, address=None), Host(name='me@gpu2', slots=4, address=None)]

    Raises LaunchError if a part is wrong, or a host comes twice.
    """
    hosts: Dict[str, Host] = {}
    for word in text.split(","):
        name, colon, slots = word.strip().partition(":")
        if not _HOST.fullmatch(name) or (colon and not _is_slots(slots)):
            hosts_as = f"each with ':N' for room for N workers, 1 to {MAX_SLOTS}, as in gpu1,gpu2 or user@10.0.0.7:4,gpu2:4"
            raise LaunchError(not_allowed(f"{word!r} in {text!r}", f"hosts as ssh takes them, with commas between them, {hosts_as}"))
        if name in hosts:
            raise LaunchError(f"{name} appears twice in {text!r}; allowed: each host once, with {name}:N for N workers")
        hosts[name] = Host(name, int(slots or 1))
    return list(hosts.values())


def _is_slots(text: str) -> bool:
    return text.isdecimal() and len(text) < 10 and 1 <= int(text) <= MAX_SLOTS


def _fields(words: Sequence[str], where: str) -> Dict[str, Any]:
    values: Dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        if key == "slots" and _is_slots(value):
            values[key] = int(value)
        elif key == "address" and _ADDRESS.fullmatch(value):
            values[key] = value
        else:
            raise LaunchError(not_allowed(f"{where}: {word!r}", f"slots=N, N from 1 to {MAX_SLOTS}, and address=IP"))
    return values


def by_rank(placed: Sequence[Placed], reached_at: Sequence[str]) -> List[Placed]:
    """The processes with their workers numbered as ps-lite will (:mod:`prophet_mx.place`), where it goes by addresses: ``reached_at`` are
    the hosts'.

    >>> [(one.index, one.host) for one in by_rank([Placed("worker", 0, 0), Placed("worker", 1, 1)], ["10.0.0.1", "10.0.0.2"])]
    [(0, 1), (1, 0)]
    """
    workers = [process for process in placed if process.role == "worker"]
    workers.sort(key=lambda worker: reached_at[worker.host], reverse=True)  # stable: on one host in the order of before
    others = [process for process in placed if process.role != "worker"]
    return others + [replace(worker, index=index) for index, worker in enumerate(workers)]


def place(hosts: Sequence[Host], workers: Optional[int], servers: Optional[int]) -> Tuple[List[Placed], int, int]:
    """Spread a job over ``hosts``: ``(processes, workers, servers)``.

    The scheduler, which does next to nothing, is on the first host. Workers go round the hosts that have a free slot, so that they
    share as few network interfaces as possible; None is as many as there are slots. Servers go round all hosts and take no slot;
    None is one on each host that has a worker.

    Raises LaunchError if there are more workers than slots.
    """
    slots = sum(host.slots for host in hosts)
    workers = slots if workers is None else workers
    if workers > slots:
        more = "(more with slots=N in a host file, or with -H HOST:N)"
        raise LaunchError(not_allowed(f"--workers {workers}", f"at most {slots}, the slots of the hosts {more}"))
    rounds = [(turn, i) for i, host in enumerate(hosts) for turn in range(host.slots)]
    of_workers = [i for _, i in sorted(rounds)[:workers]]
    servers = len(set(of_workers)) if servers is None else servers
    placed = [Placed("scheduler", 0, 0)]
    placed += [Placed("server", i, i % len(hosts)) for i in range(servers)]
    placed += [Placed("worker", i, host) for i, host in enumerate(of_workers)]
    return placed, workers, servers
