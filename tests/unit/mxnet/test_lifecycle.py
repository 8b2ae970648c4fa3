"""The first internal error ends scheduling; signal handlers run after what workers do together, not in it."""

import os
import signal
import threading
from types import SimpleNamespace

import pytest

from prophet_mx.mxnet.lifecycle import FailOpen, deferred_signals


class StopError(Exception):
    pass


def stop(*_):
    raise StopError


def test_what_handlers_raise_comes_out_when_all_is_done():
    done, old = [], signal.signal(signal.SIGUSR1, stop)
    try:
        for raised, number in ((StopError, signal.SIGUSR1), (KeyboardInterrupt, signal.SIGINT)):
            with pytest.raises(raised), deferred_signals():
                os.kill(os.getpid(), number)
                os.kill(os.getpid(), number)
                done.append(number)
        assert done == [signal.SIGUSR1, signal.SIGINT] and signal.getsignal(signal.SIGUSR1) is stop
        with pytest.raises(ValueError, match="own"), deferred_signals():
            raise ValueError("own")
        with pytest.raises(StopError):
            os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, old)


def test_in_another_thread_there_is_nothing_to_do():
    entered = []

    def run():
        with deferred_signals():
            entered.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert entered


def test_the_first_internal_error_lets_everything_go_and_the_log_says_so_once(caplog):
    released = []
    fail = FailOpen(SimpleNamespace(release_all=lambda: released.append(True)))
    assert fail.reason == "" and not released
    fail("the profile", ValueError("no such step"))
    fail("the watchdog", "another")
    assert fail.reason == "the profile: ValueError: no such step" and released == [True]
    [record] = caplog.records
    assert record.levelname == "ERROR" and record.exc_info and "an internal error in the profile: ValueError" in record.getMessage()
