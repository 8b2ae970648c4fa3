"""How much of this machine's processors others took, its host and other processes: what a measurement has to be judged by."""

import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Dict, List, Optional, Set, Tuple, Type

import numpy as np

INTERVAL = 0.1  # seconds between two readings
SCAN = 1.0  # seconds between two looks at all processes, which take some milliseconds each
KERNEL = 2  # parent of the kernel's threads: what they do is mostly the job's own packets
TICKS = os.sysconf("SC_CLK_TCK")


class Others:
    """Processor time of the processes that this one and its children did not start. One that lives between two looks is missed."""

    def __init__(self) -> None:
        self._seen: Dict[int, float] = {}
        self._seconds = 0.0
        self._next = 0.0

    def seconds(self) -> float:
        """Since the first call; looks again if the last look was long enough ago."""
        if time.monotonic() >= self._next:
            first, found = not self._next, _other_processes(os.getpid())
            if not first:
                # A process that is new has all of its time from after the last look.
                self._seconds += sum(max(0.0, seconds - self._seen.get(pid, 0.0)) for pid, seconds in found.items())
            self._seen, self._next = found, time.monotonic() + SCAN
        return self._seconds


def _other_processes(own: int) -> Dict[int, float]:
    """Process -> seconds of processor time, but for ``own``, its descendants, and the kernel's threads."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # After the name, which may have anything in it: state, parent, ..., and as 12th and 13th user's and system's ticks.
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # has ended
        found[int(path.parent.name)] = (int(fields[1]), (int(fields[11]) + int(fields[12])) / TICKS)
    ours = _descendants(own, found)
    return {pid: seconds for pid, (parent, seconds) in found.items() if pid not in ours and KERNEL not in (pid, parent)}


def _descendants(own: int, processes: Dict[int, Tuple[int, float]]) -> Set[int]:
    ours, before = {own}, 0
    while len(ours) > before:
        before = len(ours)
        ours |= {pid for pid, (parent, _) in processes.items() if parent in ours}
    return ours


class Stolen:
    """Records it in a thread of its own, from entering the context to leaving it."""

    def __init__(self) -> None:
        self._times: List[float] = []
        self._seconds: List[float] = []
        self._others = Others()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Stolen":
        self._read()
        self._thread.start()
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self._end.set()
        self._thread.join()
        self._read()

    def _run(self) -> None:
        while not self._end.wait(INTERVAL):
            self._read()

    def _read(self) -> None:
        self._seconds.append(_stolen_seconds() + self._others.seconds())
        self._times.append(time.monotonic())

    def cores(self, since: Optional[float] = None, until: Optional[float] = None) -> float:
        """Processor time that the host gave to others while this machine had work to do, and that other processes here took, in cores,
        between two moments of the monotonic clock, by default all that was recorded. To be called after the end."""
        since = self._times[0] if since is None else since
        until = self._times[-1] if until is None else until
        before, after = np.interp([since, until], self._times, self._seconds)
        return float(after - before) / max(1e-9, until - since)


def _stolen_seconds() -> float:
    """Over all cores since boot (``steal`` of /proc/stat, in hundredths of a second)."""
    with open("/proc/stat") as stat:
        fields = stat.readline().split()
    return int(fields[8]) / 100 if len(fields) > 8 else 0.0
