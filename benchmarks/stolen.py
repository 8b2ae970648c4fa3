"""How much of this virtual machine's processors others took: what a measurement on a shared host has to be judged by."""
import time


class Stolen:
    """Counts from when it is made."""

    def __init__(self) -> None:
        self._seconds, self._start = _stolen_seconds(), time.monotonic()

    def cores(self) -> float:
        """Processor time since then that the host gave to others while this machine had work to do, in cores; 0 where the kernel
        does not tell."""
        return (_stolen_seconds() - self._seconds) / max(1e-9, time.monotonic() - self._start)


def _stolen_seconds() -> float:
    """Over all cores since boot (``steal`` of /proc/stat, in hundredths of a second)."""
    with open("/proc/stat") as stat:
        fields = stat.readline().split()
    return int(fields[8]) / 100 if len(fields) > 8 else 0.0
