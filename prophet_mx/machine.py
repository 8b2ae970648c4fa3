"""What this machine's kernel says about its network. Nothing is sent."""

import socket
from pathlib import Path
from typing import Optional, Tuple


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
