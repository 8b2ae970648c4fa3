"""Output that waits for its reader in a thread of its own."""

import io
import os
import threading
import time

import pytest

from prophet_mx.launcher import outlet
from prophet_mx.launcher.outlet import Outlet


@pytest.fixture
def pipe():
    """A pipe: its reading end, and a stream for the other."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as reader, os.fdopen(writing, "w", encoding="utf-8") as writer:
        yield reader, writer


def test_all_is_written_in_order(pipe):
    reader, writer = pipe
    with Outlet(writer) as output:
        for number in range(100):
            output.write(f"{number} \u00fc\n")
    assert os.read(reader.fileno(), 1 << 16).decode() == "".join(f"{number} \u00fc\n" for number in range(100))


def test_without_a_reader_there_is_no_more_room_and_nobody_waits_for_long(pipe, monkeypatch, capfd):
    monkeypatch.setattr(outlet, "MOST", 3 << 20)
    _, writer = pipe
    output, began = Outlet(writer), time.monotonic()
    assert output.room(0)
    for _ in range(64):
        output.write("x" * (1 << 16))
    assert not output.room(0.01)
    dropped = output.close(0.2)
    assert 3 << 20 < dropped < 5 << 20  # all but what the pipe has room for
    assert time.monotonic() - began < 5
    assert f"{dropped} bytes of output were dropped" in capfd.readouterr().err
    assert output.close(10) == dropped  # at once


def test_more_of_a_signal_ends_the_wait_for_a_reader(pipe):
    output, began = Outlet(pipe[1]), time.monotonic()
    output.write("x" * (1 << 20))
    assert output.close(60, lambda: time.monotonic() > began + 0.2) > 0
    assert time.monotonic() < began + 10


def test_a_slow_reader_gets_everything(pipe):
    reader, writer = pipe
    output = Outlet(writer)
    output.write("x" * (1 << 18))
    got = []

    def read():
        while sum(got) < 1 << 18:
            got.append(len(os.read(reader.fileno(), 1 << 14)))
            time.sleep(0.05)

    thread = threading.Thread(target=read)
    thread.start()
    assert output.close(0.5) == 0 and sum(got) > 1 << 17
    thread.join()


def test_an_error_of_writing_is_raised_by_the_next_call(pipe):
    reader, writer = pipe
    output = Outlet(writer)
    reader.close()
    output.write("x")
    with pytest.raises(BrokenPipeError):
        for _ in range(1000):
            output.room(0)
            time.sleep(0.01)
    with pytest.raises(BrokenPipeError):
        output.write("x")
    with pytest.raises(BrokenPipeError), output:
        pass
    with open("/dev/full", "w") as full, pytest.raises(OSError, match="No space left"), Outlet(full) as other:
        other.write("the last")


def test_a_stream_without_a_file_is_written_at_once():
    stream = io.StringIO()
    with Outlet(stream) as output:
        output.write("line\n")
        assert stream.getvalue() == "line\n" and output.room(0) and not output.isatty()
