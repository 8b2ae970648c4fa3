"""What workers do together is done as a whole, or the others wait for ever: no signal handler of the program may end it halfway."""

import signal
import threading
from contextlib import contextmanager
from types import FrameType
from typing import Any, Dict, Iterator, Optional


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Inside, the program's signal handlers are not called, Ctrl-C's included. Afterwards each signal that came is raised once, so that
    what its handler raises comes out of the caller's ``with`` statement, once all is done.

    This delays hardly anything: while MXNet waits for other workers, Python calls no handlers either. Handlers run in the main thread, so
    in any other there is nothing to do.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: Dict[int, None] = {}
    handlers: Dict[int, Any] = {}

    def note(number: int, frame: Optional[FrameType]) -> None:
        came[number] = None

    try:
        for number in map(int, signal.valid_signals()):
            handler = signal.getsignal(number)
            if callable(handler):  # of Python; not the system's own, nor "ignore"
                handlers[number] = handler
                signal.signal(number, note)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)
