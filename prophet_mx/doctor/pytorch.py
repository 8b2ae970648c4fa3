"""The checks of ``prophet-mx doctor`` for PyTorch: its build, torchrun's variables, the interfaces of gloo and NCCL, rank 0's port."""

import re
import socket
from importlib.util import find_spec
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from ..machine import MAX_PORT, address_towards, can_listen
from .checks import ERROR, INSTALL_PYTORCH, OK, PYTORCH, WARNING, Environment, Finding, core_error, run_probe
from .network import CONNECT_SECONDS, interfaces, no_answer, speed_of, why_not_connected

PROBE = "prophet_mx.torch.probe"  # run, never imported: nothing here needs PyTorch
OLDEST = (2, 1)
NAMED, NCCL_NAMED = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
OF_A_RANK = ("RANK", "WORLD_SIZE")
OF_RANK_0 = ("MASTER_ADDR", "MASTER_PORT")

Interfaces = Sequence[Tuple[str, str]]  # as network.interfaces() gives them


def check_pytorch(job: Environment) -> Iterator[Finding]:
    """Nothing to say where neither framework is installed: check_mxnet does."""
    if len(job.frameworks) > 1 and not any(find_spec(name) for name in job.frameworks):
        return
    found = run_probe(PROBE, job.environ)
    if "error" in found:
        what = "not installed" if find_spec(PYTORCH) is None else f"cannot be imported: {found['error']}"
        yield Finding("pytorch", ERROR, what, INSTALL_PYTORCH if core_error() is None else "see core")
        return
    version = tuple(int(part) for part in re.findall(r"\d+", found["torch"])[:2])
    if version < OLDEST:
        yield Finding("pytorch", ERROR, f"{found['torch']} is too old", INSTALL_PYTORCH)
    else:
        yield Finding("pytorch", OK, found["torch"])
    yield from _backends(found)


def _backends(found: Dict[str, Any]) -> Iterator[Finding]:
    if found["gloo"]:
        yield Finding("gloo", OK, "included in this PyTorch")
    else:
        what = "this PyTorch was built without gloo, which prophet_mx needs beside any backend"
        yield Finding("gloo", ERROR, what, f"install a wheel: {INSTALL_PYTORCH}")
    if not found["cuda"]:
        return
    if not found["gpus"]:
        yield Finding("gpu", WARNING, "PyTorch for CUDA sees no GPU", "look at nvidia-smi and CUDA_VISIBLE_DEVICES, or use the CPU wheel")
        return
    yield Finding("gpu", OK, f"{found['gpus']} seen by PyTorch")
    if found["nccl"]:
        yield Finding("nccl", OK, found["nccl"])
    else:
        yield Finding("nccl", WARNING, "this PyTorch was built without NCCL", "use gloo, or install a wheel for CUDA")


def check_torchrun(job: Environment) -> Iterator[Finding]:
    """The variables that every process of a job needs for init_process_group(): all of them, or those of a rank not."""
    environ = job.environ
    if not any(environ.get(name) for name in OF_A_RANK):
        yield Finding("torchrun", OK, "no RANK and WORLD_SIZE: torchrun sets them")
        return
    missing = [name for name in (*OF_A_RANK, *OF_RANK_0) if not environ.get(name)]
    if missing:
        what = f"{', '.join(missing)} not set, although others of torchrun's variables are"
        yield Finding("torchrun", ERROR, what, "start the job with torchrun, or set all of them for every process")
        return
    size, here = job.number("WORLD_SIZE") or 0, job.number("LOCAL_WORLD_SIZE")
    for name, low, high in (
        ("WORLD_SIZE", 1, None),
        ("RANK", 0, size - 1),
        ("MASTER_PORT", 1, MAX_PORT),
        ("LOCAL_WORLD_SIZE", 1, size),
        ("LOCAL_RANK", 0, (here or 1) - 1),
    ):
        value = job.number(name)
        if environ.get(name) and (value is None or value < low or high is not None and value > high):
            allowed = f"a whole number from {low}" + ("" if high is None else f" to {high}")
            yield Finding("torchrun", ERROR, f"{name}={environ[name]}", allowed)
            return
    yield Finding("torchrun", OK, f"rank {environ['RANK']} of {size}" + ("" if here is None else f", {here} of them on this machine"))


def address_of_name() -> Optional[str]:
    """The address that gloo takes if no interface is named: the first of this host's own name that is this machine's, or none."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return None
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
                return str(address[0])
        except OSError:
            continue
    return None


def _has_address(name: str, found: Interfaces) -> bool:
    import psutil  # not at the top: a package without its dependencies still shows what its commands are

    if any(name == each for each, _ in found):
        return True
    states, addresses = psutil.net_if_stats(), psutil.net_if_addrs()
    return (
        name in states and states[name].isup and any(each.family in (socket.AF_INET, socket.AF_INET6) for each in addresses.get(name, []))
    )


def _towards_rank_0(job: Environment, found: Interfaces) -> Tuple[Optional[str], Optional[bool]]:
    """The interface that leads to rank 0's host, if that is another one; and whether the job has several hosts, None if that is unknown."""
    size, here, master = job.number("WORLD_SIZE"), job.number("LOCAL_WORLD_SIZE"), job.environ.get("MASTER_ADDR")
    several = size > here if size is not None and here is not None else None
    own = address_towards(master, 1) if master else None
    leads = next((name for name, address in found if address == own), None)
    try:
        away = master is not None and own is not None and own != socket.gethostbyname(master) and not own.startswith("127.")
    except OSError:
        away = False
    return (leads if away else None), (True if away and several is None else several)


def check_gloo_nic(job: Environment, found: Optional[List[Tuple[str, str]]] = None) -> Iterator[Finding]:
    """Which address gloo would give to the other ranks. ``found`` is what :func:`interfaces` gives."""
    found = interfaces() if found is None else found
    leads, several = _towards_rank_0(job, found)
    shown = ", ".join(f"{name} ({address})" for name, address in found) or "none but loopback"
    better = f"set {NAMED}={leads or (found[0][0] if found else '...')}"
    chosen = [name for name in job.environ.get(NAMED, "").split(",") if name]
    if chosen:
        named = f"{NAMED}={','.join(chosen)}"
        missing = [name for name in chosen if not _has_address(name, found)]
        if missing:
            yield Finding("gloo_nic", ERROR, f"{named}: {missing[0]} does not exist, is down, or has no address", f"one of: {shown}")
        elif several and all(name.startswith("lo") for name in chosen):
            yield Finding("gloo_nic", ERROR, f"{named} is loopback, and the job has several hosts", better)
        elif leads is not None and leads not in chosen:
            yield Finding("gloo_nic", WARNING, f"{named}, but {leads} leads to MASTER_ADDR", f"{better}, unless all hosts are reached so")
        else:
            yield Finding("gloo_nic", OK, named)
        return
    own = address_of_name()
    taken = next((name for name, address in found if address == own), None)
    what = f"gloo takes {own or 'loopback'}, " + (
        "the address of this host's own name" if own else "as this host's own name has no address"
    )
    if taken is not None and leads not in (None, taken):
        yield Finding("gloo_nic", WARNING, f"gloo takes {taken}, but {leads} leads to MASTER_ADDR", better)
    elif taken is not None:
        yield Finding("gloo_nic", OK, f"{taken} ({own}), the address of this host's own name")
    elif own is not None and not own.startswith(("127.", "::1")):
        yield Finding("gloo_nic", OK, what)
    elif several:
        yield Finding(
            "gloo_nic", ERROR, f"{what}: the job ends with 'Gloo connectFullMesh failed'", f"{better}, which leads to other hosts"
        )
    elif several is None and found:
        yield Finding("gloo_nic", WARNING, f"{what}: no other host reaches it", f"for a job of several hosts {better}")
    else:
        yield Finding("gloo_nic", OK, f"{what}: enough for a job on this machine")


def check_gloo_link(job: Environment) -> Iterator[Finding]:
    """How fast the link of gloo's interface is."""
    found = interfaces()
    chosen = job.environ.get(NAMED, "").split(",")[0]
    own = address_of_name()
    name = chosen or next((each for each, address in found if address == own), "")
    if name and _has_address(name, found):
        yield speed_of(name, job, found, NAMED, check="gloo_link")


def check_nccl_nic(job: Environment, found: Optional[List[Tuple[str, str]]] = None) -> Iterator[Finding]:
    """Whether NCCL finds an interface by the names that it is told: beginnings, or after '=' whole names; after '^' those to leave out."""
    value = job.environ.get(NCCL_NAMED, "")
    if not value:
        return
    found = interfaces() if found is None else found
    import psutil

    names = [*(name for name, _ in found), *(name for name in psutil.net_if_addrs() if name.startswith("lo"))]
    pattern = value.lstrip("^=")
    marks = value[: len(value) - len(pattern)]
    parts = [part.partition(":")[0] for part in pattern.split(",") if part]
    hit = [name for name in names if (name in parts if "=" in marks else name.startswith(tuple(parts)))]
    left = [name for name in names if name not in hit and not name.startswith("lo")] if "^" in marks else hit
    if left:
        yield Finding("nccl_nic", OK, f"{NCCL_NAMED}={value}: {', '.join(left)}")
    else:
        shown = ", ".join(f"{name} ({address})" for name, address in found) or "none but loopback"
        yield Finding("nccl_nic", ERROR, f"{NCCL_NAMED}={value} leaves no interface", f"one of: {shown}")


def check_master(job: Environment) -> Iterator[Finding]:
    """On rank 0's host the port where ranks meet must be free, or be torchrun's; from elsewhere it must answer."""
    host, port = job.environ.get("MASTER_ADDR"), job.number("MASTER_PORT")
    if not host or port is None or not 1 <= port <= MAX_PORT:
        return
    try:
        address = socket.gethostbyname(host)
    except OSError as error:
        yield Finding("master", ERROR, f"the name {host} cannot be resolved ({error})", "set MASTER_ADDR to its IP address")
        return
    local = address.startswith("127.") or address_towards(address, port) == address
    reason = why_not_connected(address, port, CONNECT_SECONDS)
    if reason is None:
        yield Finding(
            "master", OK, f"{host}:{port} answers" + (": torchrun, rank 0, or another program that uses the port" if local else "")
        )
    elif local and can_listen(port):
        yield Finding("master", OK, f"port {port} is free on this machine")
    elif local:
        yield Finding("master", ERROR, f"nothing can listen on port {port} of this machine", "choose another MASTER_PORT")
    else:
        yield no_answer(f"{host}:{port}", reason, "job's rank 0", "master")
