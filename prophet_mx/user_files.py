"""Reading a file that a user names. What is no regular file could block for ever, or never end."""

import os
import select
import stat

from .errors import ProphetError


class NotAFileError(ProphetError, OSError):
    """There is something else than a file: a device, a socket, or a pipe where none is read."""


def read_text(path: str, pipes: bool = False) -> str:
    """The text of a regular file; with ``pipes`` also of a pipe, as a shell makes one of ``<(command)``. Such an end waits for who writes.

    Raises OSError if it cannot be read, an instance of NotAFileError if it is something else, and ValueError if it is not UTF-8 text.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # does not wait for who writes into a pipe
    try:
        mode = os.fstat(descriptor).st_mode  # of what was opened, whatever is at the path by now
        if pipes and stat.S_ISFIFO(mode):
            ready = select.poll()
            ready.register(descriptor, select.POLLIN)
            ready.poll()  # until somebody has written: before that, reading finds an end
            os.set_blocking(descriptor, True)
        elif stat.S_ISDIR(mode):
            raise IsADirectoryError(21, "it is a folder", path)
        elif not stat.S_ISREG(mode):
            raise NotAFileError(22, "it is not a regular file" + " or a pipe" * pipes, path)
    except BaseException:
        os.close(descriptor)
        raise
    with open(descriptor, encoding="utf-8") as file:
        return file.read()
