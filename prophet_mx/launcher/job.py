"""The processes of a job: start them, read their output, and leave none behind.

How a job ends, in one place:

========================================== ===================================== ==========================================
what happens                               what is done                          exit code
========================================== ===================================== ==========================================
all workers end with 0                     scheduler and servers get ``grace``   0
                                           seconds to end, then are ended
a process ends with another code           all others are ended                  that code; 128 + N if killed by signal N;
                                                                                 75: PROPHET_STALL_ABORT passed
SIGINT, SIGTERM or SIGHUP arrives          all are ended; a second one: killed   128 + the signal's number (Ctrl-C: 130)
``timeout`` passes                         all are ended                         124
========================================== ===================================== ==========================================

*To end* a process is SIGTERM to its process group, and SIGKILL ``grace`` seconds later. Every process has a group of its own, so
that its own children (data loaders, a shell's commands) end with it. If this process itself is killed, a guard process kills
the groups. A process on another host is an ssh client here, which is told in words to end what it runs there
(:mod:`prophet_mx.launcher.remote`).

One thread does everything, in one loop: it reads the pipes, looks for processes that have ended, and looks at the clock.
"""
import os
import selectors
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import Callable, List, Mapping, Optional, Sequence, Tuple

from ..errors import LaunchError
from ..exit_codes import EXIT_STALLED, EXIT_TIMEOUT
from .console import LineSplitter

TICK = 0.05  # seconds between two looks at processes and clock while there is no output
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LAST_OUTPUT = 1.0  # seconds to wait for the end of the output once all processes have ended
_LAST_WORD = 5.0  # seconds for another host to kill its process and say so, before its connection is given up

Sink = Callable[[str, str, bool], None]
"""``sink(label, text, final)``: a line of the process ``label``; ``final`` is False for a line that is still being redrawn."""


def label_of(role: str, index: int) -> str:
    """The name of a process in output and messages: ``scheduler``, ``server 0``, ``worker 1``, ..."""
    return role if role == "scheduler" else f"{role} {index}"


@dataclass(frozen=True)
class ProcessResult:
    """How one process of a job ended.

    ``index`` is the launcher's own count, not the rank: ranks are given out by the job's scheduler. ``returncode`` is negative if
    the process was killed by a signal. ``output`` is what it wrote to stdout and stderr ('' unless captured).
    """

    role: str
    index: int
    returncode: int
    ended_by_launcher: bool
    output: str

    @property
    def label(self) -> str:
        """As :func:`label_of` gives it."""
        return label_of(self.role, self.index)


@dataclass(frozen=True)
class JobResult:
    """How a job ended: its exit code, the reason in words ('' after success), and each process, workers last."""

    exit_code: int
    reason: str
    processes: Tuple[ProcessResult, ...]

    @property
    def workers(self) -> List[ProcessResult]:
        """The workers, by the launcher's index."""
        return [process for process in self.processes if process.role == "worker"]

    def logs(self) -> str:
        """The reason and the output of every process, for the message of a failed test."""
        parts = [f"exit code {self.exit_code}: {self.reason or 'success'}"]
        for process in self.processes:
            ended = ", ended by the launcher" if process.ended_by_launcher else ""
            parts.append(f"----- {process.label}: return code {process.returncode}{ended}\n{process.output.rstrip()}")
        return "\n".join(parts)


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


class Guard:
    """A shell that kills the job's process groups if this process dies before it says 'done'.

    It learns that from the end of its standard input, whose only writer is this process.
    """

    _SCRIPT = ('trap "" INT TERM HUP; groups=; '
               'while read -r group; do [ "$group" = done ] && exit 0; groups="$groups -$group"; done; '
               '[ -z "$groups" ] || kill -s KILL -- $groups')

    def __init__(self) -> None:
        self._shell = subprocess.Popen(["/bin/sh", "-c", self._SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL, cwd="/", start_new_session=True)

    def add(self, group: int) -> None:
        self._say(str(group))

    def dismiss(self) -> None:
        self._say("done")
        self._shell.stdin.close()
        self._shell.wait()

    def _say(self, word: str) -> None:
        try:
            os.write(self._shell.stdin.fileno(), word.encode() + b"\n")
        except BrokenPipeError:
            pass  # somebody killed the guard: the job does not depend on it


class _Process:
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

    def hint(self, code: int) -> str:
        """What an exit code may mean besides the program's own failure, in words to append."""
        return ""

    def end(self) -> None:
        """Ask it to end."""
        signal_group(self.popen.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End it now, and whatever is left of its group. May be called again."""
        signal_group(self.popen.pid, signal.SIGKILL)


class _RemoteProcess(_Process):
    """An ssh client whose other side is ``python -m prophet_mx.remote``; its standard input carries what that is to do.

    Killing the client would end the other side as well, but later: nobody would know when.
    """

    _give_up_at: Optional[float] = None

    def hint(self, code: int) -> str:
        return " (ssh's code for a connection that failed)" if code == 255 else ""

    def say(self, line: bytes) -> None:
        try:
            os.write(self.popen.stdin.fileno(), line + b"\n")
        except OSError:
            pass  # the connection is gone: the other side ends its process by itself

    def end(self) -> None:
        self.say(b"end")

    def kill(self) -> None:
        if self.returncode is None and self._give_up_at is None:
            self.say(b"kill")
            self._give_up_at = time.monotonic() + _LAST_WORD
        elif self.returncode is not None or time.monotonic() >= self._give_up_at:
            super().kill()


class Job:
    """The processes of one job: ``start`` each, ``wait``, ``close`` in any case, then ``result``. See the module's text for the rules."""

    def __init__(self, sink: Optional[Sink], capture: bool, grace: float, signals: List[int]) -> None:
        self._sink: Sink = sink or (lambda label, text, final: None)
        self._capture = capture
        self._grace = grace
        self._signals = signals
        self._processes: List[_Process] = []
        self._selector = selectors.DefaultSelector()
        self._guard = Guard()
        self._exit_code = 0
        self._reason = ""
        self._kill_at: Optional[float] = None  # set once the job is being ended
        self._workers_ended_at: Optional[float] = None

    def start(self, role: str, index: int, command: Sequence[str], env: Mapping[str, str],
              spec: Optional[bytes] = None) -> None:
        """Start ``command`` with the environment ``env``.

        With a ``spec`` it is an ssh client that reaches :mod:`prophet_mx.launcher.remote`, and ``spec`` what that is to run.
        """
        stdin = subprocess.DEVNULL if spec is None else subprocess.PIPE
        try:
            popen = subprocess.Popen(command, env=env, stdin=stdin, stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT, bufsize=0, start_new_session=True)
        except OSError as error:
            raise LaunchError(f"{label_of(role, index)} could not be started: {error}") from error
        self._guard.add(popen.pid)
        process = (_Process if spec is None else _RemoteProcess)(role, index, popen, self._capture)
        self._processes.append(process)
        self._selector.register(popen.stdout, selectors.EVENT_READ, process)
        if spec is not None:
            process.say(spec)

    def wait(self, timeout: Optional[float]) -> None:
        """Until every process has ended, of itself or because the job was ended."""
        give_up_at = None if timeout is None else time.monotonic() + timeout
        while any(process.returncode is None for process in self._processes):
            self._read(TICK)
            self._look_for_ended()
            now = time.monotonic()
            if self._signals:
                self._end(128 + self._signals[0], f"the launcher received {_signal_name(self._signals[0])}")
            if give_up_at is not None and now >= give_up_at:
                self._end(EXIT_TIMEOUT, f"the job had not ended after {timeout:g} s")
            if self._workers_ended_at is not None and now >= self._workers_ended_at + self._grace:
                self._end(0, "")
            if self._kill_at is not None and (now >= self._kill_at or len(self._signals) > 1):
                for process in self._running():
                    process.kill()

    def close(self) -> None:
        """Leave nothing behind: kill what is left of the groups, read what is left of the output."""
        try:
            while True:
                for process in self._processes:
                    process.kill()
                if not any(isinstance(process, _RemoteProcess) and not process.poll() for process in self._running()):
                    break
                time.sleep(TICK)
            deadline = time.monotonic() + _LAST_OUTPUT
            while self._selector.get_map() and time.monotonic() < deadline:
                self._read(TICK)
        finally:
            for process in self._processes:
                process.popen.wait()
                process.popen.stdout.close()
                if process.popen.stdin is not None:
                    process.popen.stdin.close()
            self._selector.close()
            self._guard.dismiss()

    def result(self) -> JobResult:
        return JobResult(self._exit_code, self._reason, tuple(
            ProcessResult(process.role, process.index, process.popen.returncode, process.ended_by_launcher,
                          (process.output or b"").decode("utf-8", errors="replace")) for process in self._processes))

    def _read(self, wait: float) -> None:
        """Hand on what the processes have written, waiting up to ``wait`` seconds for something."""
        if not self._selector.get_map():
            time.sleep(wait)
            return
        for key, _ in self._selector.select(wait):
            process, data = key.data, os.read(key.fd, 1 << 16)
            if not data:
                self._selector.unregister(key.fileobj)
            elif process.output is not None:
                process.output += data
            for text, final in process.lines.feed(data) if data else process.lines.close():
                self._sink(process.label, text, final)

    def _look_for_ended(self) -> None:
        ended = [process for process in self._processes if process.poll()]
        for process in ended:
            code = process.returncode
            if code != 0 and not process.ended_by_launcher:
                meaning = " (nothing was answered for PROPHET_STALL_ABORT seconds)" if code == EXIT_STALLED else process.hint(code)
                how = f"ended with code {code}{meaning}" if code > 0 else f"was killed by {_signal_name(-code)}"
                self._end(code if code > 0 else 128 - code, f"{process.label} {how}")
        if self._workers_ended_at is None and all(p.returncode == 0 for p in self._processes if p.role == "worker"):
            self._workers_ended_at = time.monotonic()

    def _end(self, exit_code: int, reason: str) -> None:
        """Ask all running processes to end; the first call's code and reason are the job's."""
        if self._kill_at is not None:
            return
        self._exit_code, self._reason, self._kill_at = exit_code, reason, time.monotonic() + self._grace
        running = self._running()
        for process in running:
            process.ended_by_launcher = True
        others = ", ".join(process.label for process in running)
        why = reason or f"the workers ended {self._grace:g} s ago"
        self._sink("launch", why + (f"; ending {others}" if others else ""), True)
        for process in running:
            process.end()

    def _running(self) -> List[_Process]:
        return [process for process in self._processes if process.returncode is None]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
