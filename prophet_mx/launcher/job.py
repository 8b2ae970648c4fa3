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
``until`` says so                          all are ended                         0
========================================== ===================================== ==========================================

The second of these rows can be followed by another start (``restarts``): if the code is 75, or the process was lost
(:meth:`Process.lost <prophet_mx.launcher.processes.Process.lost>`) before all workers had ended with 0.

*To end* a process is SIGTERM to its process group, with SIGCONT for what is stopped, and SIGKILL ``grace`` seconds later. Every
process has a group of its own, so that its own children (data loaders, a shell's commands) end with it. If this process itself is
killed, a guard process kills the groups. A process on another host is an ssh client here, which is told in words to end what it runs there
(:mod:`prophet_mx.launcher.remote`).

One thread does everything, in one loop: it reads the pipes, looks for processes that have ended, and looks at the clock. It never waits
for whoever reads the output (:mod:`prophet_mx.launcher.outlet`).
"""

import os
import selectors
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import Callable, List, Mapping, Optional, Sequence, Tuple

from ..errors import LaunchError
from ..runtime import EXIT_STALLED, EXIT_TIMEOUT
from .console import LAUNCHER, Sink
from .processes import TICK, Guard, Process, RemoteProcess, label_of, pipe_end

_LAST_OUTPUT = 1.0  # seconds to wait for the end of the output once all processes have ended


@dataclass(frozen=True)
class ProcessResult:
    """How one process of a job ended.

    ``index`` is a worker's rank if nothing has come in between (:mod:`prophet_mx.place`). ``returncode`` is negative if
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
    """How a job ended: its exit code, the reason in words ('' after success), and each process, workers last.

    ``lost`` says that another start may work: a process was lost while workers trained, or got no answer for too long.
    """

    exit_code: int
    reason: str
    processes: Tuple[ProcessResult, ...]
    lost: bool = False

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


class Job:
    """The processes of one job: ``start`` each, ``wait``, ``close`` in any case, then ``result``. See the module's text for the rules.

    ``room(seconds)`` says whether the sink can take more, after up to so many seconds. While it cannot, the processes wait to be read.
    """

    def __init__(
        self, sink: Optional[Sink], capture: bool, grace: float, signals: List[int], room: Callable[[float], bool] = lambda seconds: True
    ) -> None:
        self._sink: Sink = sink or (lambda label, text, final: None)
        self._room = room
        self._capture = capture
        self._grace = grace
        self._signals = signals
        self._processes: List[Process] = []
        self._selector = selectors.DefaultSelector()
        self._guard = Guard()
        self._exit_code = 0
        self._reason = ""
        self._lost = False
        self._kill_at: Optional[float] = None  # set once the job is being ended
        self._workers_ended_at: Optional[float] = None

    def start(self, role: str, index: int, command: Sequence[str], env: Mapping[str, str], spec: Optional[bytes] = None) -> None:
        """Start ``command`` with the environment ``env``.

        With a ``spec`` it is an ssh client that reaches :mod:`prophet_mx.launcher.remote`, and ``spec`` what that is to run.
        """
        stdin = subprocess.DEVNULL if spec is None else subprocess.PIPE
        try:
            popen = subprocess.Popen(
                command, env=env, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0, start_new_session=True
            )
        except OSError as error:
            raise LaunchError(f"{label_of(role, index)} could not be started: {error}") from error
        self._guard.add(popen.pid)
        process = (Process if spec is None else RemoteProcess)(role, index, popen, self._capture)
        self._processes.append(process)
        self._selector.register(pipe_end(popen.stdout), selectors.EVENT_READ, process)
        if spec is not None and isinstance(process, RemoteProcess):
            process.say(spec)

    def wait(self, timeout: Optional[float], since: float, until: Optional[Callable[[], bool]] = None) -> None:
        """Until every process has ended, of itself or because the job was ended: ``timeout`` seconds after ``since``, or by ``until``."""
        give_up_at = None if timeout is None else since + timeout
        while any(process.returncode is None for process in self._processes):
            if self._kill_at is not None or self._room(TICK):
                self._read(TICK)
            self._look_for_ended()
            now = time.monotonic()
            if self._signals:
                self._end(128 + self._signals[0], received(self._signals[0]))
            if give_up_at is not None and now >= give_up_at:
                self._end(EXIT_TIMEOUT, f"the job had not ended after {timeout:g} s")
            if until is not None and self._kill_at is None and until():
                self._end(0, "all that was asked for is done")
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
                if not any(isinstance(process, RemoteProcess) and not process.poll() for process in self._running()):
                    break
                time.sleep(TICK)
            deadline = time.monotonic() + _LAST_OUTPUT
            while self._selector.get_map() and time.monotonic() < deadline:
                self._read(TICK)
        finally:
            for process in self._processes:
                process.popen.wait()
                pipe_end(process.popen.stdout).close()
                if process.popen.stdin is not None:
                    process.popen.stdin.close()
            self._selector.close()
            self._guard.dismiss()

    def result(self) -> JobResult:
        return JobResult(
            self._exit_code,
            self._reason,
            tuple(
                ProcessResult(
                    process.role,
                    process.index,
                    process.popen.returncode,
                    process.ended_by_launcher,
                    (process.output or b"").decode("utf-8", errors="replace"),
                )
                for process in self._processes
            ),
            self._lost,
        )

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
        trained = all(process.returncode == 0 for process in self._processes if process.role == "worker")
        for process in ended:
            code = process.returncode
            if code and not process.ended_by_launcher:
                if self._kill_at is None:
                    self._lost = not trained and (code == EXIT_STALLED or process.lost(code))
                meaning = " (no answer for PROPHET_STALL_ABORT seconds)" if code == EXIT_STALLED else process.hint(code)
                how = f"ended with code {code}{meaning}" if code > 0 else f"was killed by {_signal_name(-code)}"
                self._end(code if code > 0 else 128 - code, f"{process.label} {how}")
        if self._workers_ended_at is None and trained:
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
        self._sink(LAUNCHER, why + (f"; ending {others}" if others else ""), True)
        for process in running:
            process.end()

    def _running(self) -> List[Process]:
        return [process for process in self._processes if process.returncode is None]


def received(number: int) -> str:
    """The reason for the end of a job after a signal to the launcher."""
    return f"the launcher received {_signal_name(number)}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
