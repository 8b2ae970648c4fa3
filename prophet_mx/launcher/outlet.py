"""The launcher's output, written by a thread of its own: a reader that stands still (Ctrl-S, a pager, a full pipe) must not hold up the
thread that looks after the job.

What is not written yet is kept, up to :data:`ROOM` bytes. Then the job's processes are no longer read (:meth:`Outlet.room`), so that they
wait for the reader, as they would without a launcher. Only what comes while the job is being ended is read all the same, so that each
process can end, and dropped beyond :data:`MOST` bytes.
"""

import io
import os
import select
import threading
import time
from typing import Callable, Optional, TextIO, Type

from ..runtime import start_thread

ROOM = 1 << 20  # bytes that wait for the reader before the processes do
MOST = 1 << 24  # bytes that are kept at most
PATIENCE = 30.0  # seconds without a reader for which the end of the output is kept, once a job has ended by itself
HASTE = 1.0  # the same once it was ended
_PIECE = 1 << 14
_STDERR = 2


class Outlet:
    """A text stream for :class:`~prophet_mx.launcher.console.Console` that never waits; a context manager. It writes to ``stream``, at its
    end too if that is no file of the system, such as io.StringIO.

    An error of writing is raised by the next call. KVStoreError if the thread cannot be started.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._changed = threading.Condition()
        self._data = bytearray()  # not written yet
        self._written = self._dropped = 0
        self._closed = False
        self._error: Optional[OSError] = None
        self._thread: Optional[threading.Thread] = None
        stream.flush()
        try:
            self._fd = stream.fileno()
        except (OSError, io.UnsupportedOperation):
            self._fd = -1  # writing to it cannot take long
        else:
            self._thread = start_thread("output", self._write_all)

    def isatty(self) -> bool:
        return self._stream.isatty()

    def write(self, text: str) -> None:
        if self._thread is None:
            if not self._closed:
                self._stream.write(text)
            return
        data = text.encode(self._stream.encoding or "utf-8", errors="replace")
        with self._changed:
            self._check()
            if self._closed or len(self._data) > MOST:
                self._dropped += len(data)
            else:
                self._data += data
                self._changed.notify_all()

    def flush(self) -> None:
        if self._thread is None:
            self._stream.flush()

    def room(self, seconds: float) -> bool:
        """Whether there is room for more, after up to so many seconds of waiting for it."""
        with self._changed:
            self._check()
            return self._changed.wait_for(lambda: len(self._data) < ROOM or self._error is not None, seconds)

    def close(self, patience: float, enough: Callable[[], bool] = lambda: False) -> int:
        """Take no more, and wait until all is written: while the reader reads, until it has not for ``patience`` seconds, or until
        ``enough()``. Returns how many bytes were dropped, for which there is also a line on standard error if that can take one. May be
        called again; the first call raises an error of writing."""
        with self._changed:
            if self._closed:
                return self._dropped
            self._closed = True
            self._changed.notify_all()
            written, since = self._written, time.monotonic()
            while self._data and self._error is None and not enough() and time.monotonic() < since + patience:
                self._changed.wait(0.05)
                if self._written != written:
                    written, since = self._written, time.monotonic()
            self._check()
            self._dropped += len(self._data)
            del self._data[:]
            dropped = self._dropped
        if self._thread is not None and not dropped:
            self._thread.join()
        if dropped and select.select([], [_STDERR], [], 0)[1]:
            os.write(_STDERR, f"prophet-mx: {dropped} bytes of output were dropped, because nobody has read them\n".encode())
        return dropped

    def __enter__(self) -> "Outlet":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], *exc: object) -> None:
        try:
            self.close(HASTE)
        except OSError:
            if kind is None:
                raise

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _write_all(self) -> None:
        """In the thread. It uses the file alone, never the stream: a lock of the stream would hold up the end of the interpreter."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._data or self._closed)
                piece = bytes(self._data[:_PIECE])
            if not piece:
                return
            try:
                count = os.write(self._fd, piece)
            except OSError as error:
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            with self._changed:
                del self._data[:count]
                self._written += count
                self._changed.notify_all()
