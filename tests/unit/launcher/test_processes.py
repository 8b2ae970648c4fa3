"""What the launcher tells a process on another host, however slowly the other side reads."""

import signal
import subprocess
import sys
import time

import pytest

from prophet_mx.launcher.processes import Process, RemoteProcess

LIMIT = 20  # seconds
READER = "import sys, time; time.sleep(0.5); data = sys.stdin.buffer.read(); print(len(data), data[-5:])"


def told(*words):
    """What comes in on the other side of these words, while signals arrive here."""
    command = [sys.executable, "-c", READER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as popen:
        process = RemoteProcess("worker", 0, popen, False)
        began = time.monotonic()
        for word in words:
            process.say(word)
        assert time.monotonic() - began < 0.4, "the launcher waited for the other side"
        while process.unsaid and time.monotonic() < began + LIMIT:
            process.poll()
            time.sleep(0.01)
        popen.stdin.close()
        return popen.stdout.read().decode().strip()


def test_a_long_word_arrives_as_a_whole_before_the_next():
    previous = signal.signal(signal.SIGALRM, lambda number, frame: None)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)  # a signal ends a write in its middle
    try:
        assert told(b"x" * 1_000_000, b"end") == f"{1_000_001 + 4} b'\\nend\\n'"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def test_a_word_to_a_connection_that_is_gone_is_dropped():
    with subprocess.Popen(["true"], stdin=subprocess.PIPE, bufsize=0) as popen:
        popen.wait(LIMIT)
        process = RemoteProcess("worker", 0, popen, False)
        process.say(b"x" * 1_000_000)
        process.end()
        assert not process.unsaid


@pytest.mark.parametrize(
    "code, lost", [(0, False), (1, False), (75, False), (127, False), (128, False), (129, True), (137, True), (-9, True)]
)
def test_a_process_is_lost_if_a_signal_killed_it_as_it_says_or_as_a_shell_says(code, lost):
    """128 and less are a program's own; another start would end like this one."""
    with subprocess.Popen(["true"]) as popen:
        assert Process("worker", 0, popen, False).lost(code) == lost
