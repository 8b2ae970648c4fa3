"""The alarm of a process's end counts the time in which the thread that ends it waits, and no other."""

import pytest

from support.commands import python

ALARM = "import time; from prophet_mx import _core; _core.alarm(0.7, 'waiting', 7)\n"
BUSY = "until = time.monotonic() + 2.5\nwhile time.monotonic() < until: sum(range(1000))\n"


@pytest.mark.parametrize(
    "then, code", [("time.sleep(20)", 7), (BUSY, 0), (BUSY + "time.sleep(20)", 7)], ids=["waits", "works", "works, then waits"]
)
def test_only_waiting_counts(then, code):
    done = python("-c", ALARM + then, expect=code, timeout=30)
    assert (done.stderr == "waiting\n") == (code == 7)
