"""What every process of prophet_mx shares: the version, the exit codes, and how its Python threads start and are known.

Builds read the version from this file without importing anything.
"""

import sys
import threading
from typing import Any, Callable

from .errors import KVStoreError

__version__ = "0.1.0"

# They mean the same for a command, for a launcher and for a worker.
EXIT_USAGE = 2  # a wrong argument or setting
EXIT_STALLED = 75  # EX_TEMPFAIL of sysexits.h: a worker got no answer for PROPHET_STALL_ABORT seconds; another start may work
EXIT_TIMEOUT = 124  # the job had not ended in time; as timeout(1)

THREAD_PREFIX = "prophet_mx-"


def start_thread(name: str, target: Callable[..., None], *arguments: Any) -> threading.Thread:
    """Start a thread. Its owner joins it before the interpreter ends: one that lives when MXNet shuts down aborts the process.

    KVStoreError if the system has no room for it.
    """
    # Not daemon=False: the interpreter would wait for the thread before it runs the exit handler that ends it.
    thread = threading.Thread(target=target, args=arguments, name=THREAD_PREFIX + name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise not_started(name, error) from error
    return thread


def not_started(name: str, error: Exception) -> KVStoreError:
    """The error for a thread that cannot be started."""
    return KVStoreError(
        f"the thread {THREAD_PREFIX + name} cannot be started ({error}); usually the limit of processes is reached: see "
        "'ulimit -u', and the limit of the container"
    )


def flush_output() -> None:
    """Write what the standard streams still hold, before a process ends by ``os._exit``."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # it is closed, or nobody reads it
            pass


def in_own_thread() -> bool:
    """Whether the caller's thread is one of prophet_mx."""
    return threading.current_thread().name.startswith(THREAD_PREFIX)
