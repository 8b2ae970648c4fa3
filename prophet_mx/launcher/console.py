"""Output of a job's processes: on one stream, whole lines with the label of their process; and in files, one for each process.

A program draws a progress bar by writing ``\\r`` and the line again. What a ``\\r`` overwrites is never seen on a terminal for long,
and in a log it would be noise, so only two things count: the *newest state* of a line that is being redrawn, and the *final line*.
"""

import os
import re
import shutil
from typing import Callable, Dict, Iterable, Iterator, Optional, Protocol, TextIO, Tuple

from ..errors import LaunchError, not_allowed

LAUNCHER = "launch"  # the label of what the launcher itself says
MAX_LINE = 1 << 16
"""Bytes after which a line is handed on although it has not ended."""

_CLEAR = "\r\x1b[K"

Sink = Callable[[str, str, bool], None]
"""``sink(label, text, final)``: a line of the process ``label``; ``final`` is False for a line that is still being redrawn."""


class Stream(Protocol):
    """What :class:`Console` needs of a text stream."""

    def isatty(self) -> bool: ...

    def write(self, text: str) -> object: ...

    def flush(self) -> None: ...


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


# What a terminal may get of a program's text besides tabs: colours, which end with the line. A whole escape sequence is one match, so that
# none is cut in two. Bars often begin with one that clears the line, which is cleared in any case.
_CONTROL = re.compile(r"\x1b\[[0-9;:]*m|\x1b\[[0-2]?K|[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
_COLOURS_OFF = "\x1b[0m"


def harmless(text: str) -> str:
    """``text`` for a terminal: what could move the cursor, change a title, or make the terminal answer, is shown as ``cat -v`` does.

    >>> harmless("a\\x1b[31mb\\x1b[2Jc")
    'a\\x1b[31mb^[[2Jc\\x1b[0m'
    """
    coloured = []

    def shown(match: "re.Match[str]") -> str:
        found = match.group()
        if found.endswith("m"):
            coloured.append(True)
            return found
        if len(found) > 1:
            return ""
        code = ord(found)
        return f"^{chr(code ^ 64)}" if code < 128 else f"\\x{code:02x}"

    return _CONTROL.sub(shown, text) + (_COLOURS_OFF if coloured else "")


def clipped(text: str, width: int) -> str:
    """The first ``width`` characters of a :func:`harmless` text, with all of its colours."""
    parts, left = [], width
    for part in re.split(r"(\x1b\[[0-9;:]*m)", text):
        parts.append(part if part.startswith("\x1b") else part[: max(0, left)])
        left -= 0 if part.startswith("\x1b") else len(part)
    return "".join(parts)


def _text(line: bytes) -> str:
    """What a terminal shows at the end of ``line``: the part after the last ``\\r``."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", errors="replace")


class Console:
    """Prints lines with their process's label; on a terminal it also redraws the progress bar of one process in place.

    That process is the first that draws one: often only one does. Without a terminal a bar is printed once, in its final state, and the
    text of lines is as it was written. A terminal gets it :func:`harmless`.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._bar_of: Optional[str] = None
        self._bar = ""

    def __call__(self, label: str, text: str, final: bool) -> None:
        line = f"[{label}] {harmless(text) if self._terminal else text}"
        if not final and self._terminal and self._bar_of is None:
            self._bar_of = label
        if final:
            clear = _CLEAR if self._bar else ""
            if label == self._bar_of:
                self._bar = ""
            self._write(f"{clear}{line}\n{self._bar}")
        elif label == self._bar_of:
            self._bar = clipped(line, terminal_size()[0] - 1)
            self._write(_CLEAR + self._bar)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class LogFolder:
    """Writes lines into files of the folder ``path``, which is made if it is not there; a context manager.

    The file of ``worker 0`` is ``worker-0.log``. A file that is there already is emptied first. What the launcher says goes into
    ``launch.log``, and into the files of all processes: each says why its process was ended, and where a restart begins.

    A file that can no longer be written, because the disk is full, does not end the job: ``complain(label, text, final)`` is told once,
    and the file is closed.

    Raises LaunchError if the folder cannot be made, or a file in it not be written.
    """

    def __init__(self, path: str, labels: Iterable[str], complain: Sink) -> None:
        self._complain = complain
        self._files: Dict[str, TextIO] = {}
        try:
            os.makedirs(path, exist_ok=True)
            for label in [LAUNCHER, *labels]:
                name = os.path.join(path, label.replace(" ", "-") + ".log")
                self._files[label] = open(name, "w", encoding="utf-8", buffering=1)  # noqa: SIM115 (__exit__ closes it)
        except OSError as error:
            self.__exit__()
            why = f" ({error.strerror})"
            raise LaunchError(not_allowed(f"--log-dir {path!r}", "a folder in which files can be written", why)) from None

    def __call__(self, label: str, text: str, final: bool) -> None:
        """Take a line, as a :data:`Sink` does; the states of a line that is being redrawn are left out."""
        if not final:
            return
        for name in list(self._files) if label == LAUNCHER else [label]:
            self._write(name, f"[{LAUNCHER}] {text}\n" if label == LAUNCHER else f"{text}\n")

    def _write(self, name: str, line: str) -> None:
        file = self._files.get(name)
        if file is None:
            return
        try:
            file.write(line)
        except OSError as error:
            del self._files[name]
            _close(file)
            self._complain(LAUNCHER, f"--log-dir: {file.name} is no longer written: {error.strerror}", True)

    def __enter__(self) -> "LogFolder":
        return self

    def __exit__(self, *exc: object) -> None:
        for file in self._files.values():
            _close(file)


def _close(file: TextIO) -> None:
    try:
        file.close()
    except OSError:
        pass  # what is left in its buffer cannot be written either
