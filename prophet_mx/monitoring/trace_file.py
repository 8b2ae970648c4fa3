"""A trace on disk: what its writers and its reader have to agree on, and its file, which is complete after every write.

A trace is a JSON array in Chrome's trace event format. Its first event, HEAD, has facts about the job as arguments. A worker has two
processes: the first with the rows below, the second, by one higher, with a row for each unit. The compiled recorder owns the rows.

Each write replaces the closing bracket by new events and a closing bracket, in one call at one place: whenever the process is killed
between two writes, the file is valid JSON. If a write fails (a full disk), the file is put back to what it was before.
"""

import os
import stat
from typing import Optional

from .._core import GAP_ROW, ITERATION_ROW, LABEL_MAX, LINK_ROW, STEP_ROW

__all__ = ["FORMAT", "GAP_ROW", "HEAD", "ITERATION_ROW", "LABEL_MAX", "LINK_COUNTERS", "LINK_ROW", "LOST", "STAGES", "STEP_ROW"]

FORMAT = "prophet_mx timeline 1"
HEAD = "prophet_mx"
STAGES = ("wait", "wire", "answer", "unpack")  # of a unit: the slices of its row
LINK_COUNTERS = "link "  # before a link's number: its counters
LOST = " events lost"  # behind their number
END = b"\n]\n"


class TraceFile:
    """A new file of trace events, for its owner only (mode 0600).

    Parameters
    ----------
    path : where; an old trace there is replaced, which takes a regular file.
    first : the first event, a JSON text.

    Raises OSError if it cannot be created or written, or if ``path`` is something else than a regular file (FileExistsError).
    """

    def __init__(self, path: str, first: bytes) -> None:
        self.path = path
        self.bytes = 0  # of the events; the closing bracket comes after
        self._descriptor: Optional[int] = None
        try:
            if not stat.S_ISREG(os.lstat(path).st_mode):
                raise FileExistsError(17, "it exists and is not a regular file", path)
            os.unlink(path)
        except FileNotFoundError:
            pass
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            self.append(b"[\n" + first)
        except OSError:
            self.close()
            os.unlink(path)
            raise

    def append(self, events: bytes) -> None:
        """Add events, each with its comma before it. OSError if that fails: then the file is as it was before."""
        if self._descriptor is None:
            raise ValueError("the trace is closed")
        text, start = memoryview(events + END), 0
        try:
            while start < len(text):
                start += os.pwrite(self._descriptor, text[start:], self.bytes + start)
        except OSError:
            if self.bytes:
                os.pwrite(self._descriptor, END, self.bytes)  # over what is there: this takes no room
                os.ftruncate(self._descriptor, self.bytes + len(END))
            raise
        self.bytes += len(events)

    def close(self) -> None:
        """Write nothing from now on. May be called again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
