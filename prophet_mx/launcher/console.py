"""Output of several processes on one stream: whole lines, each with the label of its process; progress bars stay bars.

A program draws a progress bar by writing ``\\r`` and the line again. What a ``\\r`` overwrites is never seen on a terminal for long,
and in a log it would be noise, so only two things count: the *newest state* of a line that is being redrawn, and the *final line*.
"""

import shutil
from typing import Iterator, Optional, TextIO, Tuple

MAX_LINE = 1 << 16
"""Bytes after which a line is handed on although it has not ended."""

_CLEAR = "\r\x1b[K"


class LineSplitter:
    """Bytes as they arrive from one process -> ``(text, final)``: whole lines, and the newest state of a redrawn one.

    >>> splitter = LineSplitter()
    >>> list(splitter.feed(b"epoch 0\\n\\r 10%")), list(splitter.feed(b"\\r100%\\nhalf a l"))
    ([('epoch 0', True), (' 10%', False)], [('100%', True)])
    >>> list(splitter.feed(b"ine\\n"))
    [('half a line', True)]
    """

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> Iterator[Tuple[str, bool]]:
        """Take ``data`` and yield what can be shown now."""
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            yield _text(line), True
        if b"\r" in self._pending:
            # Forget the overwritten states; a "\r" at the very end stays, it may be half of a "\r\n".
            body = self._pending.rstrip(b"\r")
            state = body.rpartition(b"\r")[2]
            self._pending = b"\r" + state + self._pending[len(body) :]
            if state:
                yield _text(state), False
        if len(self._pending) > MAX_LINE:
            yield from self.close()

    def close(self) -> Iterator[Tuple[str, bool]]:
        """Yield the last line if the output ended without a line end."""
        pending, self._pending = self._pending, b""
        if pending.strip(b"\r"):
            yield _text(pending), True


def terminal_size() -> Tuple[int, int]:
    """Columns and lines of the terminal; 80 and 24 for one that does not tell (0 x 0, as some containers have)."""
    columns, lines = shutil.get_terminal_size()
    return (columns, lines) if columns > 1 and lines > 0 else (80, 24)


def _text(line: bytes) -> str:
    """What a terminal shows at the end of ``line``: the part after the last ``\\r``."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", errors="replace")


class Console:
    """Prints lines with their process's label; on a terminal it also redraws the progress bar of one process in place.

    That process is the first that draws one: often only rank 0 does, and the ranks are not known here. Without a terminal a bar is
    printed once, in its final state.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._bar_of: Optional[str] = None
        self._bar = ""

    def __call__(self, label: str, text: str, final: bool) -> None:
        line = f"[{label}] {text}"
        if not final and self._terminal and self._bar_of is None:
            self._bar_of = label
        if final:
            if label == self._bar_of:
                clear, self._bar = _CLEAR if self._bar else "", ""
            else:
                clear = _CLEAR if self._bar else ""
            self._write(f"{clear}{line}\n{self._bar}")
        elif label == self._bar_of:
            self._bar = line[: terminal_size()[0] - 1]
            self._write(_CLEAR + self._bar)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
