"""What commands that print for a while do when nobody reads on, as in ``prophet-mx simulate ... | head``."""
import os
import sys


def stop_printing() -> None:
    """After a BrokenPipeError: keep the interpreter from writing to the pipe at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
