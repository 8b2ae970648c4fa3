"""When and where the end of a store happens that nobody refers to any more; test_exit.py shows it in jobs."""

import pytest

from support.commands import python

SCRIPT = """
import gc, threading, time
from unittest import mock
import mxnet as mx
from prophet_mx import ScheduledKVStore
from prophet_mx.mxnet import lifecycle

handlers = threading.Lock()             # as of a log handler

class Path:
    watchdog, driver = mock.MagicMock(), mock.MagicMock()
    thread = None

    def __init__(self, name):
        self.name = name

    def forked(self):
        return False

    def failed_updates(self, plain):
        return ""

    def stop(self):                     # joins a thread that may want to log
        time.sleep(0.2)
        if self.thread is not None:
            self.thread.join()
        with handlers:
            print("ended:", self.name, flush=True)

def store(name):
    plain, it = mx.kv.create("local"), ScheduledKVStore.__new__(ScheduledKVStore)
    it.handle, plain.handle = plain.handle, mx.base.KVStoreHandle()
    it._path = Path(name)
    return it

def collected(name):
    it = store(name)
    it.myself = it
    del it
    with handlers:
        gc.collect()
        print("logged", flush=True)

def over():
    until = time.monotonic() + 10
    while (held or lifecycle._handed_over) and time.monotonic() < until:
        time.sleep(0.01)

class Slow:                             # is finalised before what it refers to
    def __del__(self):
        time.sleep(0.5)

held = []
gc.disable()
it = store("by the last reference")
it = None
print("after it", flush=True)
collected("by the collector")
over()
held = [store("by a thread that it joins")]
thread = held[0]._path.thread = threading.Thread(target=held.clear, name="prophet_mx-watchdog")
thread.start()
over()
with mock.patch("_thread.start_new_thread", side_effect=RuntimeError("can't start new thread")):
    collected("at exit")
slow = Slow()
slow.store = store("at exit, by a collector that was under way")
slow.myself, slow = slow, None
threading.Thread(target=gc.collect, daemon=True).start()
time.sleep(0.1)
it = store("by the interpreter, as it goes")
it.myself = it
print("the last line", flush=True)
"""


def test_a_store_ends_once_and_the_collector_never_waits_for_it():
    lines = python("-c", SCRIPT, merged=True, expect=0).stdout.splitlines()
    assert lines[:4] == ["ended: by the last reference", "after it", "logged", "ended: by the collector"], lines
    assert lines[4:7] == ["ended: by a thread that it joins", "logged", "the last line"], lines
    assert sorted(lines[7:9]) == ["ended: at exit", "ended: at exit, by a collector that was under way"], lines
    assert lines[9:] == ["ended: by the interpreter, as it goes"], lines


ENDED = """
import atexit, code, sys
import mxnet
from prophet_mx.mxnet import lifecycle

atexit.register(lambda: print("ended by", lifecycle._ended_by()))

def fails():
    return 1 / 0

if "handled" in sys.argv:
    for names in ({}, globals()):
        code.InteractiveInterpreter(names).runcode("1 / 0")
    assert sys.last_type is ZeroDivisionError
else:
    fails()
"""


@pytest.mark.parametrize("start", ["file", "module", "text"])
def test_the_exception_that_ends_the_program_is_told_from_those_that_were_shown_before(start, tmp_path):
    """However the program was started. An interpreter in the program shows exceptions as Python does at its end."""
    (tmp_path / "ended.py").write_text(ENDED)
    words = {"file": ["ended.py"], "module": ["-m", "ended"], "text": ["-c", ENDED]}[start]
    assert "ended by None" in python(*words, "handled", cwd=tmp_path, expect=0).stdout
    assert "ended by <class 'ZeroDivisionError'>" in python(*words, cwd=tmp_path, expect=1).stdout
