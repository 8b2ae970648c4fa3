"""The Python threads of prophet_mx: how one is started, and how it is known.

Each is joined before the interpreter ends: one that lives when MXNet shuts down aborts the process.
"""

import threading
from typing import Any, Callable

from .errors import KVStoreError

PREFIX = "prophet_mx-"


def start_thread(name: str, target: Callable[..., None], *arguments: Any) -> threading.Thread:
    """Start a thread. KVStoreError if the system has no room for it."""
    # Not daemon=False: the interpreter would wait for the thread before it runs the exit handler that ends it.
    thread = threading.Thread(target=target, args=arguments, name=PREFIX + name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise not_started(name, error) from error
    return thread


def not_started(name: str, error: Exception) -> KVStoreError:
    """The error that says so of one of our threads."""
    return KVStoreError(
        f"the thread {PREFIX + name} cannot be started ({error}); usually the limit of processes is reached: see "
        "'ulimit -u', and the limit of the container"
    )


def in_own_thread() -> bool:
    """Whether the caller's thread is one of prophet_mx."""
    return threading.current_thread().name.startswith(PREFIX)
