"""What this machine's kernel says about its network and its cores. Nothing is sent."""

import math
import os
import socket
from pathlib import Path
from typing import Optional, Tuple

MAX_PORT = 65535
NETWORK = Path("/sys/class/net")
CONTROL_GROUP = Path("/sys/fs/cgroup")  # of a container, which sees its own group there


def local_port_range() -> Tuple[int, int]:
    """The ports that the kernel gives to outgoing connections."""
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()
        return int(low), int(high)
    except (OSError, ValueError):
        return 32768, 60999


def address_towards(host: str, port: int) -> Optional[str]:
    """This machine's own IPv4 address on the way to another; None if there is no way."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            return str(probe.getsockname()[0])
    except (OSError, OverflowError):
        return None


def can_listen(port: int, address: str = "") -> bool:
    """Whether a process could listen on a port now, of all addresses or of one of this machine's."""
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, port))
            return True
    except OSError:
        return False


def link_speed(interface: str, folder: Path = NETWORK) -> Optional[float]:
    """The bytes/s at which an interface's link runs; None where the kernel does not know, as for many virtual ones."""
    try:
        megabits = int((folder / interface / "speed").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return megabits * 1e6 / 8 if megabits > 0 else None


def usable_cores(folder: Path = CONTROL_GROUP) -> int:
    """How many cores this process may use: those it is allowed to run on, or fewer if a container limits its time on them."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()  # 'max', or microseconds in each period
        return min(cores, max(1, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError, ZeroDivisionError):
        return cores
