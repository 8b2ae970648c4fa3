"""One process of a job, here or on another host: how it is known, asked to end, and killed with all that it started."""

import os
import signal
import subprocess
import time
from typing import IO, Optional

from .console import LineSplitter

TICK = 0.05  # seconds between two looks at processes and clock while there is no output
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_CONNECTION_LOST = 255  # ssh's exit code
_LAST_WORD = 5.0  # seconds for another host to kill its process and say so, before its connection is given up


def label_of(role: str, index: int) -> str:
    """The name of a process in output and messages: ``scheduler``, ``server 0``, ``worker 1``, ..."""
    return role if role == "scheduler" else f"{role} {index}"


def ended(process: int) -> Optional[int]:
    """The return code of a child, negative if a signal killed it; None while it runs.

    It stays a zombie, so that its group's number cannot be given to another process until the group has been killed.
    """
    info = os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if info is None:
        return None
    return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status


def signal_group(group: int, number: int) -> None:
    """Send a signal to what is left of a process group."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        pass


def end_group(group: int) -> None:
    """Ask a process group to end: also one that is stopped, which hears of nothing until it continues."""
    signal_group(group, signal.SIGTERM)
    signal_group(group, signal.SIGCONT)


def pipe_end(end: Optional[IO[bytes]]) -> IO[bytes]:
    """This process's end of a pipe that it asked for."""
    assert end is not None
    return end


class Guard:
    """A shell that kills the job's process groups if this process dies before it says 'done'.

    It learns that from the end of its standard input, whose only writer is this process.
    """

    _SCRIPT = (
        'trap "" INT TERM HUP; groups=; '
        'while read -r group; do [ "$group" = done ] && exit 0; groups="$groups -$group"; done; '
        '[ -z "$groups" ] || kill -s KILL -- $groups'
    )

    def __init__(self) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", self._SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def add(self, group: int) -> None:
        self._say(str(group))

    def dismiss(self) -> None:
        self._say("done")
        pipe_end(self._shell.stdin).close()
        self._shell.wait()

    def _say(self, word: str) -> None:
        try:
            os.write(pipe_end(self._shell.stdin).fileno(), word.encode() + b"\n")
        except BrokenPipeError:
            pass  # somebody killed the guard: the job does not depend on it


class Process:
    """One running process, its group and its output."""

    def __init__(self, role: str, index: int, popen: "subprocess.Popen[bytes]", capture: bool) -> None:
        self.role = role
        self.label = label_of(role, index)
        self.index = index
        self.popen = popen
        self.lines = LineSplitter()
        self.output: Optional[bytearray] = bytearray() if capture else None
        self.returncode: Optional[int] = None
        self.ended_by_launcher = False

    def poll(self) -> bool:
        """Whether the process has ended since the last call."""
        if self.returncode is None:
            self.returncode = ended(self.popen.pid)
            return self.returncode is not None
        return False

    def lost(self, code: int) -> bool:
        """Whether an exit code says that the process did not end by itself: a signal killed it, as it says or as a shell says."""
        return code < 0 or 128 < code <= 128 + signal.SIGRTMAX

    def hint(self, code: int) -> str:
        """What an exit code may mean besides the program's own failure, in words to append."""
        return ""

    def end(self) -> None:
        """Ask it to end."""
        end_group(self.popen.pid)

    def kill(self) -> None:
        """End it now, and whatever is left of its group. May be called again."""
        signal_group(self.popen.pid, signal.SIGKILL)


class RemoteProcess(Process):
    """An ssh client whose other side is ``python -m prophet_mx.remote``; its standard input carries what that is to do.

    Killing the client would end the other side as well, but later: nobody would know when.
    """

    _give_up_at: Optional[float] = None
    unsaid = b""  # what the pipe to the client had no room for yet

    def poll(self) -> bool:
        self._go_on_saying()
        return super().poll()

    def lost(self, code: int) -> bool:
        return code == _CONNECTION_LOST or super().lost(code)

    def hint(self, code: int) -> str:
        return " (ssh's code for a connection that failed)" if code == _CONNECTION_LOST else ""

    def say(self, line: bytes) -> None:
        """Tell the other side. Does not wait for it: what the pipe has no room for follows with the next calls of :meth:`poll`."""
        self.unsaid += line + b"\n"
        self._go_on_saying()

    def _go_on_saying(self) -> None:
        if not self.unsaid:
            return
        pipe = pipe_end(self.popen.stdin).fileno()
        os.set_blocking(pipe, False)
        try:
            while self.unsaid:
                self.unsaid = self.unsaid[os.write(pipe, self.unsaid) :]
        except BlockingIOError:
            pass
        except OSError:
            self.unsaid = b""  # the connection is gone: the other side ends its process by itself

    def end(self) -> None:
        self.say(b"end")

    def kill(self) -> None:
        if self.returncode is None and self._give_up_at is None:
            self.say(b"kill")
            self._give_up_at = time.monotonic() + _LAST_WORD
        elif self.returncode is not None or self._give_up_at is None or time.monotonic() >= self._give_up_at:
            super().kill()
