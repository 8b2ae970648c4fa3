"""Processes of a PyTorch job for tests: as many as there are ranks, kept for many calls. Each is forked from one that has imported PyTorch,
which takes longer than most tests do.

A test decorated with :func:`on_ranks` is a function that all ranks run at once, each in its own process; it passes if it returns on all of
them. Ranks that failed, or that did not answer in time, are ended, and the next call gets new ones.
"""

import functools
import inspect
import multiprocessing
import os
import signal
import tempfile
import time
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from textwrap import dedent
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from prophet_mx.launcher.launch import free_port
from support import rank as child
from support.cluster import PACKAGE_PATH

START = 120  # seconds within which PyTorch is imported, on a machine that is busy
AFTER = 5  # seconds that the others get once a rank has failed

PROCESSES = multiprocessing.get_context("forkserver")
# torch._dynamo: the first optimizer imports it.
PROCESSES.set_forkserver_preload(["torch._dynamo", "torch.nn.parallel", "prophet_mx.torch"])


class RankError(AssertionError):
    """A rank failed or did not answer; the message has the logs of all ranks."""


class Ranks:
    """``size`` processes, numbered by rank; they start with the first call and end with :meth:`close`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.processes: List[BaseProcess] = []
        self._parents: List[Connection] = []
        self._folder: Optional[tempfile.TemporaryDirectory[str]] = None
        self._calls = 0

    def start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="prophet-test-")
        for rank in range(self.size):
            ours, theirs = PROCESSES.Pipe()
            with theirs:
                self.processes.append(started(child.serve, theirs, rank, self.size, self._log(rank), environment()))
            self._parents.append(ours)

    def close(self) -> None:
        """End all processes, whatever they do."""
        end(self.processes)
        for parent in self._parents:
            parent.close()
        self.processes, self._parents = [], []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def call(self, path: str, name: str, arguments: Dict[str, Any], timeout: float) -> List[Any]:
        """What the function ``name`` of the file ``path`` returns on each rank.

        Raises
        ------
        RankError
            it raised on some rank, or it took longer than ``timeout`` seconds; with the logs of all ranks.
        """
        answers, logs = self.attempt(path, name, arguments, timeout)
        wrong = [rank for rank in range(self.size) if not answers.get(rank, (False,))[0]]
        if wrong:
            what = ", ".join(f"rank {rank} {'failed' if rank in answers else 'did not answer'}" for rank in wrong)
            raise RankError(f"{name}: {what}\n{logs}")
        return [answers[rank][1] for rank in range(self.size)]

    def attempt(
        self, path: str, name: str, arguments: Dict[str, Any], timeout: float, after: float = AFTER, together: bool = True
    ) -> Tuple[Dict[int, Any], str]:
        """As :meth:`call`, whatever happens. By rank, unless it did not answer: whether the function returned, and what, or the exception
        as a text; and the logs of all ranks.

        Once a rank has failed the others have ``after`` seconds to answer. ``together``: at the end they wait for each other.
        """
        if not self.processes:
            self.start()
            timeout += START
        assert self._folder is not None
        self._calls += 1
        meeting = os.path.join(self._folder.name, f"meeting-{self._calls}")
        for parent in self._parents:
            parent.send((path, name, arguments, meeting, together))
        answers = self._answers(timeout, after)
        self._show_stacks([rank for rank in range(self.size) if rank not in answers])
        logs = "\n".join(f"=== rank {rank}\n{self._last(rank)}" for rank in range(self.size))
        if not all(answers.get(rank, (False,))[0] for rank in range(self.size)):
            self.close()
        return answers, logs

    def _answers(self, timeout: float, after: float) -> Dict[int, Any]:
        """The answers by rank; without those of ranks that ended, or that took too long."""
        answers: Dict[int, Any] = {}
        waiting = dict(enumerate(self._parents))
        deadline = time.monotonic() + timeout
        while waiting and time.monotonic() < deadline:
            for found in wait(list(waiting.values()), max(0, deadline - time.monotonic())):
                [rank] = [rank for rank, parent in waiting.items() if parent is found]
                del waiting[rank]
                try:
                    answers[rank] = self._parents[rank].recv()
                except (EOFError, OSError):
                    pass
                if not answers.get(rank, (False,))[0]:
                    deadline = min(deadline, time.monotonic() + after)
        return answers

    def _show_stacks(self, ranks: List[int]) -> None:
        """Ranks that hang write into their logs what each of their threads does."""
        for rank in ranks:
            with suppress(ProcessLookupError):  # it has ended by now
                if self.processes[rank].is_alive():
                    os.kill(self.processes[rank].pid, signal.SIGUSR1)
        if ranks:
            time.sleep(0.5)

    def _log(self, rank: int) -> str:
        assert self._folder is not None
        return os.path.join(self._folder.name, f"rank-{rank}.log")

    def _last(self, rank: int) -> str:
        """What a rank has written during the last call."""
        with open(self._log(rank), encoding="utf-8", errors="replace") as log:
            return log.read().rpartition("\n--- ")[2]


def started(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    """A process that runs this function of :mod:`support.rank`."""
    process = PROCESSES.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def end(processes: List[BaseProcess]) -> None:
    """End them, whatever they do."""
    for process in processes:
        process.kill()
    for process in processes:
        process.join()


def run_script(
    text: str, size: int = 2, *, arguments: Sequence[object] = (), timeout: float = 60, env: Optional[Mapping[str, str]] = None
) -> List[Tuple[Optional[int], str]]:
    """Run Python code as the script of a job: by rank, the exit code (None if it did not end by itself in time) and all output."""
    with tempfile.TemporaryDirectory(prefix="prophet-test-") as folder:
        common = {**environment(), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size), **(env or {})}
        logs = [Path(folder, f"log-{rank}") for rank in range(size)]
        processes = [
            started(child.script, dedent(text), arguments, str(log), {**common, "RANK": str(rank)}) for rank, log in enumerate(logs)
        ]
        deadline = time.monotonic() + timeout
        for process in processes:
            process.join(max(0, deadline - time.monotonic()))
        codes = [process.exitcode for process in processes]
        end(processes)
        return [(code, log.read_text(encoding="utf-8", errors="replace")) for code, log in zip(codes, logs)]


def environment() -> Dict[str, str]:
    """Variables of a rank: the package that is tested, one thread each, and the loopback interface."""
    return {"PYTHONPATH": PACKAGE_PATH, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


@functools.lru_cache(maxsize=None)
def ranks(size: int) -> Ranks:
    """The processes that all tests with so many ranks share."""
    return Ranks(size)


def close_all() -> None:
    """End the processes of all tests."""
    for size in range(1, 9):
        ranks(size).close()


def on_ranks(size: int, timeout: float = 60) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The decorated function is run by ``size`` ranks at once, with the arguments that pytest gives; they must be picklable.

    ``timeout``: seconds for all of it.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def test(**arguments: Any) -> None:
            ranks(size).call(inspect.getfile(function), function.__name__, arguments, timeout)

        return test

    return decorate
