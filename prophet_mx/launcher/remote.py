"""``python -m prophet_mx.remote``: one process of a job on the host that ``prophet-mx launch`` reached over ssh.

What to run comes as one line of JSON on the standard input, not on the command line: no shell takes it apart, and no other user of
the host reads it in the list of processes. The input then stays open. As long as it is, the launcher is there; these lines, or its
end, say what to do:

=========  =================================================================================
``end``    SIGTERM to the process and all it started, stopped ones too, SIGKILL ``grace`` seconds later
``kill``   SIGKILL
the end    as ``end``: the launcher, or the connection, is gone
=========  =================================================================================

The exit code is that of the process, 128 + N if signal N killed it, and 2 if it could not be started.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any, Dict, List, Mapping, Optional

from ..cuda import with_libraries
from ..errors import LaunchError
from ..place import LISTEN_VARIABLE
from .environment import defaults, with_hook
from .processes import STOP_SIGNALS, TICK, Guard, end_group, ended, signal_group

EXIT_CANNOT_START = 2
MAX_SPEC = 1 << 22  # bytes


def main() -> int:
    """Run what the standard input says; return the exit code."""
    stops: List[int] = []
    for number in STOP_SIGNALS:
        signal.signal(number, lambda received, frame: stops.append(received))
    guard = Guard()
    try:
        lines = _Lines(sys.stdin.fileno())
        spec = json.loads(lines.first())
        _enter(spec["directory"])
        command, env = spec["command"], _environment(spec)
        process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT, start_new_session=True)
        guard.add(process.pid)
    except (LaunchError, OSError, ValueError, KeyError) as error:
        print(f"prophet_mx.remote: error: {error}", file=sys.stderr)
        guard.dismiss()
        return EXIT_CANNOT_START
    try:
        return _wait(process, lines, spec["grace"], stops)
    finally:
        signal_group(process.pid, signal.SIGKILL)  # what it started itself and left behind
        process.wait()
        guard.dismiss()


def _enter(directory: str) -> None:
    try:
        os.chdir(directory)
    except OSError as error:
        raise LaunchError(
            f"the working directory {directory} cannot be entered ({error.strerror}); with --chdir, name one that exists on all hosts"
        ) from None


def _environment(spec: Mapping[str, Any]) -> Dict[str, str]:
    env = dict(os.environ)
    env.pop(LISTEN_VARIABLE, None)
    env.update(spec["env"])
    env.update(defaults(env, spec["sharers"], env["DMLC_ROLE"]))
    env.update(with_libraries(env, spec["command"]))
    return with_hook(env) if spec["schedule"] else env


class _Lines:
    """The lines of a file descriptor, without waiting for them."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._data = b""
        self.ended = False

    def first(self) -> str:
        """Wait for the first line."""
        while b"\n" not in self._data:
            if not self._read() or len(self._data) > MAX_SPEC:
                raise LaunchError("the input has no line that says what to run; this program is for 'prophet-mx launch --hostfile'")
        line, _, self._data = self._data.partition(b"\n")
        return line.decode()

    def new(self, wait: float) -> List[bytes]:
        """The lines that have come, after up to ``wait`` seconds."""
        if self.ended:
            time.sleep(wait)
        elif select.select([self._fd], [], [], wait)[0]:
            self._read()
        *lines, self._data = self._data.split(b"\n")
        return lines

    def _read(self) -> bool:
        try:
            data = os.read(self._fd, 1 << 16)
        except OSError:
            data = b""
        self._data += data
        self.ended = not data
        return bool(data)


def _wait(process: "subprocess.Popen[bytes]", lines: _Lines, grace: float, stops: List[int]) -> int:
    """Until the process has ended, of itself or because it was told to; ``stops`` grows with the signals that say so as well."""
    kill_at: Optional[float] = None
    while True:
        code = ended(process.pid)
        if code is not None:
            return code if code >= 0 else 128 - code
        words = lines.new(TICK)
        if kill_at is None and (b"end" in words or lines.ended or stops):
            end_group(process.pid)
            kill_at = time.monotonic() + grace
        if b"kill" in words or len(stops) > 1 or (kill_at is not None and time.monotonic() >= kill_at):
            signal_group(process.pid, signal.SIGKILL)
