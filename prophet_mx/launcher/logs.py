"""The folder of ``prophet-mx launch --log-dir``: a file for each process of a job, and one for what the launcher itself says."""

import os
from typing import Dict, Iterable, TextIO

from ..errors import LaunchError, not_allowed
from .job import LAUNCHER, Sink


class LogFolder:
    """Writes lines into files of the folder ``path``, which is made if it is not there; a context manager.

    The file of ``worker 0`` is ``worker-0.log``. A file that is there already is emptied first. What the launcher says goes into
    ``launch.log``, and into the files of all processes: each says why its process was ended, and where a restart begins.

    A file that can no longer be written, because the disk is full, does not end the job: ``complain(label, text, final)`` is told once,
    and the file is closed.

    Raises
    ------
    LaunchError
        the folder cannot be made, or a file in it not be written.
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
            raise LaunchError(not_allowed(f"--log-dir {path}", "a folder in which files can be written", f" ({error})")) from None

    def __call__(self, label: str, text: str, final: bool) -> None:
        """Take a line, as a :data:`~prophet_mx.launcher.job.Sink` does; the states of a line that is being redrawn are left out."""
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
