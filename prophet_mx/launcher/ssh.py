"""Jobs on several hosts over ssh: the commands, what they carry, and the addresses.

An ssh client runs ``python -m prophet_mx.remote`` on the host and writes to it what to run there. The remote command line is the
same for every process and quoted with :func:`shlex.quote`; commands, settings and their values never pass through a shell.
"""

import ipaddress
import json
import re
import shlex
import socket
import subprocess
from dataclasses import dataclass
from typing import Dict, List, Mapping, Sequence, Tuple

from ..errors import LaunchError, not_allowed
from ..place import LISTEN_VARIABLE
from .hosts import Host

FORWARDED = ("DMLC_", "PROPHET_", "MXNET_", "PS_", "BYTESCHEDULER_")

# What the launcher itself decides, with how it is told to, and what ps-lite sets for its own use.
_DECIDED = {
    "DMLC_ROLE": "other names; the launcher gives each process its role",
    "DMLC_RANK": "other names; the job's scheduler gives out the ranks",
    "DMLC_NODE_HOST": "address=IP in a host file, or --env DMLC_INTERFACE=NAME",
    "DMLC_PS_ROOT_URI": "address=IP of the first host in a host file",
    "DMLC_PS_ROOT_PORT": "--port N",
    "DMLC_NUM_WORKER": "--workers N",
    "DMLC_NUM_SERVER": "--servers N",
}
HIDDEN = "(hidden)"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# A host that is off or cut off is a failure within a minute: ssh gives up when it would ask a fourth time.
# A question for a password, which nobody would see, is one at once.
_OPTIONS = ("BatchMode=yes", "ConnectTimeout=30", "ServerAliveInterval=15", "ServerAliveCountMax=3")


@dataclass(frozen=True)
class Ssh:
    """How to reach the hosts, and what they have."""

    options: Tuple[str, ...]  # for ``ssh -o``, as in ``("Port=2222",)``
    python: str  # the Python there that has prophet_mx
    directory: str  # the working directory there

    def command(self, host: Host, env: Mapping[str, str]) -> List[str]:
        """The ssh client's command line for ``host``; of ``env`` it has only PYTHONPATH, by which prophet_mx may be found."""
        remote = [self.python, "-m", "prophet_mx.remote"]
        if "PYTHONPATH" in env:
            remote = ["env", "PYTHONPATH=" + env["PYTHONPATH"]] + remote
        options = [word for option in self.options + _OPTIONS for word in ("-o", option)]
        return ["ssh", "-T", *options, "--", host.name, " ".join(map(shlex.quote, remote))]

    def spec(self, command: Sequence[str], env: Mapping[str, str], grace: float, sharers: int, schedule: bool) -> bytes:
        """What :mod:`prophet_mx.launcher.remote` reads, without the line's end. ``sharers`` is the number of workers on the host."""
        return json.dumps(
            {
                "command": list(command),
                "env": dict(env),
                "directory": self.directory,
                "grace": grace,
                "sharers": max(1, sharers),
                "schedule": schedule,
            }
        ).encode()


def forwarded(environ: Mapping[str, str]) -> Dict[str, str]:
    """The variables of ``environ`` that processes on other hosts get without being named."""
    return {name: value for name, value in environ.items() if name.startswith(FORWARDED) and name not in _DECIDED}


def parse_variables(arguments: Sequence[str], environ: Mapping[str, str]) -> Dict[str, str]:
    """Variables from ``NAME=VALUE``, or ``NAME`` with the value it has in ``environ``.

    Raises LaunchError if a name is none, has no value, or is of a variable that the launcher decides itself.
    """
    env = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not _NAME.fullmatch(name):
            raise LaunchError(not_allowed(f"--env {argument}", "NAME=VALUE, or NAME of a variable that is set here"))
        if name in _DECIDED:
            raise LaunchError(not_allowed(f"--env {argument}", _DECIDED[name]))
        if name == LISTEN_VARIABLE:
            raise LaunchError(not_allowed(f"--env {argument}", "other names", ", because every process would listen on that port"))
        if not equals and name not in environ:
            raise LaunchError(f"--env {name}: that variable is not set here; set it, or give its value as in --env {name}=VALUE")
        env[name] = value if equals else environ[name]
    return env


def shown(command: Sequence[str], spec: bytes, hidden: Mapping[str, str]) -> str:
    """A line for a shell that does what the launcher does for one process. It ends with Ctrl-D, or with the process. Values of the
    ``hidden`` variables are to be filled in."""
    values = json.loads(spec)
    values["env"] = {name: HIDDEN if hidden.get(name) == value else value for name, value in values["env"].items()}
    return "{ printf '%s\\n' " + shlex.quote(json.dumps(values)) + "; cat; } | " + " ".join(map(shlex.quote, command))


def addresses(hosts: Sequence[Host], options: Sequence[str]) -> List[str]:
    """The IPv4 address of each host, as the others reach it.

    Raises LaunchError if one is not known, or is good for its own host only.
    """
    found = [_ipv4(host, host.address or name_of(host, options)) for host in hosts]
    loopback = [ipaddress.ip_address(address).is_loopback for address in found]
    if any(loopback) and not all(loopback):
        host, address = next((host, address) for host, address, own in zip(hosts, found, loopback) if own)
        raise LaunchError(
            f"the address of {host.name} is {address} here, where no other host reaches it; give its address in {_line_of(host)}"
        )
    return found


def name_of(host: Host, options: Sequence[str]) -> str:
    """The name or address that ssh would connect to; it can differ from what the host file says (``HostName`` in ~/.ssh/config).

    Raises LaunchError if there is no ssh, or it does not take the ``options``.
    """
    try:
        done = subprocess.run(
            ["ssh", "-G", *(word for option in options for word in ("-o", option)), "--", host.name],
            timeout=30,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        raise LaunchError("there is no ssh on the PATH; install it (Debian: apt-get install openssh-client)") from None
    except subprocess.TimeoutExpired:
        raise LaunchError(f"'ssh -G {host.name}' gave no answer within 30 s; look at ~/.ssh/config") from None
    if done.returncode != 0:
        why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise LaunchError(f"ssh rejects its options for {host.name} (--ssh-option, ~/.ssh/config): {why}")
    return next(line.split(None, 1)[1] for line in done.stdout.splitlines() if line.startswith("hostname "))


def _ipv4(host: Host, name: str) -> str:
    try:
        return str(socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise LaunchError(f"the address of {host.name} is not known here ({name}: {error.strerror}); give it in {_line_of(host)}") from None


def _line_of(host: Host) -> str:
    return f"a host file, as in '{host.name} slots={host.slots} address=10.0.0.7'"
