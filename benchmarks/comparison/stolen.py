"""How much of this virtual machine's processors others took: what a measurement on a shared host has to be judged by."""

import threading
import time
from types import TracebackType
from typing import List, Optional, Type

import numpy as np

INTERVAL = 0.1  # seconds between two readings


class Stolen:
    """Records it in a thread of its own, from entering the context to leaving it."""

    def __init__(self) -> None:
        self._times: List[float] = []
        self._seconds: List[float] = []
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
        self._times.append(time.monotonic())
        self._seconds.append(_stolen_seconds())

    def cores(self, since: Optional[float] = None, until: Optional[float] = None) -> float:
        """Processor time that the host gave to others while this machine had work to do, in cores, between two moments of the
        monotonic clock, by default all that was recorded; 0 where the kernel does not tell. To be called after the end."""
        since = self._times[0] if since is None else since
        until = self._times[-1] if until is None else until
        before, after = np.interp([since, until], self._times, self._seconds)
        return float(after - before) / max(1e-9, until - since)


def _stolen_seconds() -> float:
    """Over all cores since boot (``steal`` of /proc/stat, in hundredths of a second)."""
    with open("/proc/stat") as stat:
        fields = stat.readline().split()
    return int(fields[8]) / 100 if len(fields) > 8 else 0.0
