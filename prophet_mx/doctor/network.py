"""The checks of ``prophet-mx doctor`` that look at the network: interfaces, the scheduler's port, TCP_INFO."""

import socket
from pathlib import Path
from typing import Iterator, List, Mapping, Optional, Sequence, Tuple

from ..config import PREFIX, Config
from ..errors import ConfigError
from ..machine import NETWORK, address_towards, can_listen, link_speed, local_port_range
from ..quantities import format_rate
from .checks import ERROR, OK, WARNING, Environment, Finding

CONNECT_SECONDS = 3.0
SLOW_LINK = 125e6  # bytes/s: a slower link is likely a mistake


def check_tcp_info(job: Environment) -> Iterator[Finding]:
    try:
        from .._core import tcp_sample
    except ImportError:
        yield Finding("tcp_info", ERROR, "cannot be checked without the compiled module", "see core")
        return
    try:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(1)
            with socket.create_connection(listener.getsockname(), CONNECT_SECONDS) as sender:
                receiver, _ = listener.accept()
                with receiver:
                    sender.sendall(b"x" * 1000)
                    receiver.recv(1000)
                    tcp_sample(sender.fileno())
    except OSError as error:
        yield Finding(
            "tcp_info",
            WARNING,
            f"acknowledged bytes cannot be read ({error})",
            "use Linux 4.1 or later, without a sandbox that blocks getsockopt; until then drain is estimated",
        )
        return
    yield Finding("tcp_info", OK, "acknowledged bytes can be read")


def interfaces() -> List[Tuple[str, str]]:
    """(name, IPv4 address) of the interfaces that are up, without loopback, in the system's order."""
    import psutil  # not at the top: a package without its dependencies still shows what its commands are

    states = psutil.net_if_stats()
    return [
        (name, address.address)
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if address.family == socket.AF_INET and not address.address.startswith("127.") and name in states and states[name].isup
    ]


def check_nic(job: Environment, found: Optional[List[Tuple[str, str]]] = None) -> Iterator[Finding]:
    """Which address this process would give to the others. ``found`` is what :func:`interfaces` gives."""
    import psutil

    found = interfaces() if found is None else found
    shown = ", ".join(f"{name} ({address})" for name, address in found) or "none but loopback"
    host, chosen = job.environ.get("DMLC_NODE_HOST"), job.environ.get("DMLC_INTERFACE")
    local = {address.address for addresses in psutil.net_if_addrs().values() for address in addresses}
    if host:
        if host in local:
            yield Finding("nic", OK, f"DMLC_NODE_HOST={host}")
        else:
            yield Finding("nic", ERROR, f"DMLC_NODE_HOST={host} is not an address of this machine", f"one of: {shown}")
    elif chosen:
        if chosen in [name for name, _ in found] or (chosen in psutil.net_if_addrs() and chosen.startswith("lo")):
            yield Finding("nic", OK, f"DMLC_INTERFACE={chosen}")
        else:
            yield Finding("nic", ERROR, f"DMLC_INTERFACE={chosen} does not exist, is down, or has no IPv4 address", f"one of: {shown}")
    elif not found:
        yield Finding("nic", WARNING, "no interface but loopback", "set DMLC_NODE_HOST=127.0.0.1 for a job on this machine alone")
    elif len(found) > 1:
        leads = _leading_to(job.scheduler, found)
        yield Finding(
            "nic",
            WARNING,
            f"several interfaces ({shown}): ps-lite uses the first, {found[0][0]}",
            "set DMLC_INTERFACE to the one that leads to the other machines" + (f", such as {leads}" if leads else ""),
        )
    else:
        yield Finding("nic", OK, shown)


def used_interface(environ: Mapping[str, str], found: Sequence[Tuple[str, str]]) -> Optional[str]:
    """The name of the interface that a process with this environment would use: the one chosen, or ps-lite's choice, the first.

    None if there is none, or the one chosen is not here: :func:`check_nic` says so.
    """
    import psutil

    host, chosen = environ.get("DMLC_NODE_HOST"), environ.get("DMLC_INTERFACE")
    every = psutil.net_if_addrs()
    if host:
        return next((name for name, addresses in every.items() if any(address.address == host for address in addresses)), None)
    if chosen:
        return chosen if chosen in every else None
    return next((name for name, _ in found), None)


def check_link(job: Environment, found: Optional[List[Tuple[str, str]]] = None, folder: Path = NETWORK) -> Iterator[Finding]:
    """How fast the link of the job's interface is. ``found`` is what :func:`interfaces` gives."""
    found = interfaces() if found is None else found
    name = used_interface(job.environ, found)
    if name is not None:
        yield speed_of(name, job, found, "DMLC_INTERFACE", folder)


def speed_of(
    name: str, job: Environment, found: Sequence[Tuple[str, str]], variable: str, folder: Path = NETWORK, check: str = "link"
) -> Finding:
    """How fast the link of this interface is. ``variable`` would name another one."""
    if name == "lo":
        return Finding(check, OK, "loopback, as fast as memory")
    speeds = {other: speed for other in [name, *(other for other, _ in found)] for speed in [link_speed(other, folder)] if speed}
    speed = speeds.get(name)
    if speed is None:
        return Finding(check, OK, f"{name}; the kernel does not know its speed, as in many virtual machines")
    shown, fastest = f"{name} runs at {format_rate(speed)}", max(speeds, key=lambda other: speeds[other])
    asked = _bandwidth(job.environ)
    if speeds[fastest] > speed:
        what = f"{shown}, {fastest} at {format_rate(speeds[fastest])}"
        return Finding(check, WARNING, what, f"set {variable}={fastest} if it leads to the other machines")
    if speed < SLOW_LINK:
        return Finding(
            check, WARNING, shown, f"check the cable and the switch port, which may have negotiated less than {format_rate(SLOW_LINK)}"
        )
    if asked is not None and asked > speed:
        what = f"{shown}, below {PREFIX}BANDWIDTH={format_rate(asked)}"
        return Finding(check, WARNING, what, f"unset {PREFIX}BANDWIDTH: the rate is then measured")
    return Finding(check, OK, shown)


def _bandwidth(environ: Mapping[str, str]) -> Optional[float]:
    """The setting; None if it is not set, or is one of the wrong values that :func:`~prophet_mx.doctor.checks.check_settings` names."""
    name = PREFIX + "BANDWIDTH"
    try:
        return Config.from_env({name: environ[name]} if name in environ else {}).bandwidth
    except ConfigError:
        return None


def _leading_to(scheduler: Optional[Tuple[str, int]], found: Sequence[Tuple[str, str]]) -> Optional[str]:
    address = address_towards(*scheduler) if scheduler else None
    return next((name for name, own in found if own == address), None)


def check_scheduler(job: Environment) -> Iterator[Finding]:
    """On the scheduler's machine its port must be free, or be the scheduler's; from elsewhere it must answer."""
    if job.scheduler is None:
        yield Finding("scheduler", OK, "no address given (--scheduler HOST:PORT checks one)")
        return
    host, port = job.scheduler
    try:
        address = socket.gethostbyname(host)
    except OSError as error:
        yield Finding("scheduler", ERROR, f"the name {host} cannot be resolved ({error})", "set DMLC_PS_ROOT_URI to its IP address")
        return
    local = address.startswith("127.") or address_towards(address, port) == address
    low, high = local_port_range()
    if local and low <= port <= high:
        what = f"port {port} is in the range {low} to {high} of outgoing connections: any of them may take it"
        yield Finding("scheduler", WARNING, what, f"choose a port below {low}")
    answers = why_not_connected(address, port)
    if answers is None:
        yield Finding(
            "scheduler",
            OK,
            f"{host}:{port} answers"
            + (": a scheduler, or another program that uses the port" if local and job.environ.get("DMLC_ROLE") != "worker" else ""),
        )
    elif local and can_listen(port):
        yield Finding("scheduler", OK, f"port {port} is free on this machine")
    elif local:
        yield Finding("scheduler", ERROR, f"nothing can listen on port {port} of this machine", "choose another DMLC_PS_ROOT_PORT")
    else:
        yield no_answer(f"{host}:{port}", answers)


def no_answer(address: str, reason: str, who: str = "scheduler", check: str = "scheduler") -> Finding:
    """What to do about a scheduler on another machine, or ``who`` is awaited there, that does not answer."""
    refused = "refused" in reason
    return Finding(
        check,
        WARNING if refused else ERROR,
        f"{address} does not answer ({reason})",
        f"start the {who} first" if refused else "open the port in the firewalls between the machines",
    )


def why_not_connected(address: str, port: int, seconds: float = CONNECT_SECONDS) -> Optional[str]:
    """Why a connection fails, or None."""
    try:
        with socket.create_connection((address, port), seconds):
            return None
    except ConnectionRefusedError:
        return "refused"
    except OSError as error:
        return str(error) or "no answer"
