"""A real sshd on loopback, for the current user, with keys of its own; nothing outside of a temporary folder is read or written."""

import getpass
import os
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, List

import pytest

from prophet_mx.launcher.launch import free_port

ADDRESSES = ("127.0.0.1", "127.0.0.2")  # two hosts, as far as ssh and MXNet can tell

_CONFIG = """\
Port {port}
{listen}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
UsePAM no
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 100
"""


@contextmanager
def running_sshd(folder: Path) -> Iterator[List[str]]:
    """Start one; yields what to give to ssh's ``-o``. Skips the test if there is no sshd, or it lets the current user not in."""
    sshd = shutil.which("sshd", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))
    for program, found in (("sshd", sshd), ("ssh", shutil.which("ssh")), ("ssh-keygen", shutil.which("ssh-keygen"))):
        if found is None:
            pytest.skip(f"there is no {program} (Debian: apt-get install openssh-server openssh-client)")
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)  # where sshd locks itself in before a login; an init script makes it
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True, timeout=30)
    port = free_port()
    listen = "\n".join("ListenAddress " + address for address in ADDRESSES)
    (folder / "config").write_text(_CONFIG.format(port=port, folder=folder, listen=listen))
    key = (folder / "host_key.pub").read_text()
    (folder / "known_hosts").write_text("".join(f"[{address}]:{port} {key}" for address in ADDRESSES))
    options = [
        f"Port={port}",
        f"User={getpass.getuser()}",
        f"IdentityFile={folder}/user_key",
        "IdentitiesOnly=yes",
        f"UserKnownHostsFile={folder}/known_hosts",
        "StrictHostKeyChecking=yes",
        "ControlPath=none",
    ]
    with open(str(folder / "log"), "w", encoding="utf-8") as log:
        daemon = subprocess.Popen([sshd, "-D", "-e", "-f", str(folder / "config")], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _wait_for(port, daemon, folder / "log")
        tried = subprocess.run(
            ["ssh", "-T", *(word for option in options + ["BatchMode=yes"] for word in ("-o", option)), ADDRESSES[0], "true"],
            timeout=30,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if tried.returncode != 0:
            pytest.skip(f"sshd lets {getpass.getuser()} not in: {tried.stdout.decode()} {(folder / 'log').read_text()[-500:]}")
        yield options
    finally:
        daemon.terminate()
        daemon.wait(10)


def _wait_for(port: int, daemon: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and daemon.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex((ADDRESSES[-1], port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("sshd does not listen: " + log.read_text())
