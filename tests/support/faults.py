"""Jobs whose processes a test stops, kills and starts again: nothing else ends them, so that what each does by itself can be seen."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional

from prophet_mx.launcher.launch import free_port
from support.cluster import package_env
from support.paths import SCRIPTS

JOB = SCRIPTS / "faults.py"
WARN, ABORT = 2, 4  # seconds: PROPHET_STALL_WARN and PROPHET_STALL_ABORT here
SHORT = {"PROPHET_STALL_WARN": str(WARN), "PROPHET_UNIT": "4000"}
LATE = 2  # seconds after its time at which something is told, or a process has ended, at the latest: so docs/reliability.md
LOAD = 3  # seconds more that these tests allow, where they measure wall time: the machine may be busy
PATIENCE = 10  # seconds after the last answer at which a worker that ends with an exception has ended
QUIET = r"worker \d: no answer for (\d+) s, and"


def told(output: str, text: str, after: float) -> int:
    """How often something was told; each time so many seconds after the last answer, by the watchdog's own count, or a little later."""
    seconds = [int(found) for found in re.findall(text, output)]
    assert all(after <= each <= after + LATE for each in seconds), f"{text}: {seconds}, not {after} to {after + LATE}"
    return len(seconds)


class FaultJob:
    """A job of jobs/scripts/faults.py with the fault ``fault``; a context manager. ``spawn(label, command, env, **options)`` starts a
    process if it is given, else they run on this machine."""

    def __init__(
        self,
        workers: int = 2,
        servers: int = 1,
        env: Optional[Mapping[str, str]] = None,
        spawn: Optional[Callable[..., Any]] = None,
        fault: str = "run",
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="prophet-test-")
        self.stop_file = os.path.join(self._folder.name, "stop")
        self.hold_file = os.path.join(self._folder.name, "hold")
        self.processes: Dict[str, subprocess.Popen[bytes]] = {}
        self.workers = [f"worker {i}" for i in range(workers)]
        common = {name: value for name, value in os.environ.items() if name not in ("PORT", "DMLC_INTERFACE")}
        common.update(
            DMLC_PS_ROOT_URI="127.0.0.1",
            DMLC_PS_ROOT_PORT=str(free_port()),
            DMLC_NODE_HOST="127.0.0.1",
            DMLC_NUM_WORKER=str(workers),
            DMLC_NUM_SERVER=str(servers),
            PYTHONUNBUFFERED="1",
            **package_env(env),
        )
        labels = ["scheduler"] + [f"server {i}" for i in range(servers)] + self.workers
        try:
            for label in labels:
                with open(self._log(label), "wb") as log:
                    own = {**common, "DMLC_ROLE": label.split()[0]}
                    options: Dict[str, Any] = dict(stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
                    command = [sys.executable, str(JOB), fault, self._folder.name]
                    self.processes[label] = (
                        spawn(label, command, own, **options)
                        if spawn
                        else subprocess.Popen(command, env=own, start_new_session=True, **options)
                    )
        except BaseException:
            self.__exit__()
            raise

    def _log(self, label: str) -> str:
        return os.path.join(self._folder.name, label.replace(" ", "-") + ".log")

    def output(self, label: str) -> str:
        return Path(self._log(label)).read_text(errors="replace")

    def logs(self) -> str:
        return "\n".join(f"----- {label}: {process.poll()}\n{self.output(label)[-6000:]}" for label, process in self.processes.items())

    def signal(self, label: str, number: int) -> float:
        """Send a signal; the time of it."""
        os.kill(self.processes[label].pid, number)
        return time.monotonic()

    def kill(self, label: str) -> float:
        moment = self.signal(label, signal.SIGKILL)
        self.processes[label].wait()
        return moment

    def until(self, condition: Callable[[], Any], seconds: float, what: str, since: Optional[float] = None) -> None:
        """Wait for a condition for so many seconds from a moment on, by default from now; fails with all outputs."""
        end = (time.monotonic() if since is None else since) + seconds
        while not condition():
            assert time.monotonic() < end, f"not within {seconds} s: {what}\n{self.logs()}"
            time.sleep(0.05)

    def says(self, label: str, text: str, seconds: float, since: Optional[float] = None) -> None:
        """Wait until a process has printed a text."""
        self.until(lambda: text in self.output(label), seconds, f"{text!r} from {label}", since)

    def iteration(self, label: str) -> int:
        """The last iteration that a worker finished with the right values."""
        lines = [line for line in self.output(label).splitlines() if line.startswith("iteration ")]
        return int(lines[-1].split()[1]) if lines else 0

    def runs(self, more: int = 10, seconds: float = 20) -> None:
        """Wait until every worker has finished so many iterations from now on."""
        goal = {label: self.iteration(label) + more for label in self.workers}
        self.until(lambda: all(self.iteration(label) >= goal[label] for label in self.workers), seconds, f"{more} more iterations")

    def of_rank(self, rank: int) -> str:
        """The worker whom the job's scheduler gave this rank."""
        return next(label for label in self.workers if f"I am rank {rank}\n" in self.output(label))

    def code(self, label: str, seconds: float, since: Optional[float] = None) -> int:
        """A process's exit code, once it has ended."""
        self.until(lambda: self.processes[label].poll() is not None, seconds, f"the end of {label}", since)
        return self.processes[label].returncode

    def codes(self, seconds: float, since: Optional[float] = None) -> List[int]:
        """The workers' exit codes, once all have ended."""
        since = time.monotonic() if since is None else since
        return [self.code(label, seconds, since) for label in self.workers]

    def hold(self) -> None:
        """Wait until all workers have finished the same iteration; the next one begins with :meth:`release`."""
        before = {label: self.output(label).count("held") for label in self.workers}
        Path(self.hold_file).touch()
        self.until(lambda: all(self.output(label).count("held") > before[label] for label in self.workers), 20, "all workers held")

    def release(self) -> None:
        os.unlink(self.hold_file)

    def finish(self, seconds: float = 20) -> None:
        """Let the workers end; all do, with the right values."""
        Path(self.stop_file).touch()
        assert self.codes(seconds) == [0] * len(self.workers), self.logs()
        assert all("all values were right" in self.output(label) for label in self.workers), self.logs()

    def __enter__(self) -> "FaultJob":
        return self

    def __exit__(self, *exc: Any) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
        for process in self.processes.values():
            process.wait()
        self._folder.cleanup()
