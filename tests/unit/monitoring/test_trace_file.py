"""The file of a timeline."""

from pathlib import Path

import pytest

from prophet_mx.monitoring.trace_file import TraceFile
from support.traces import load


def test_the_file_is_whole_after_every_write(tmp_path):
    path = tmp_path / "t.json"
    file = TraceFile(str(path), b'{"n":0}')
    for count in range(1, 50):
        assert load(path) == [{"n": n} for n in range(count)]
        file.append(b',\n{"n":%d}' % count)
    file.close()
    assert len(load(path)) == 50


def test_an_old_trace_is_replaced_and_nothing_else_is(tmp_path):
    old, target, link = tmp_path / "old.json", tmp_path / "target", tmp_path / "link.json"
    old.write_text("x" * 1000)
    TraceFile(str(old), b"1").close()
    assert load(old) == [1]
    target.write_text("precious")
    link.symlink_to(target)
    for path in (link, Path("/dev/null"), tmp_path):
        with pytest.raises(OSError):
            TraceFile(str(path), b"1")
    assert target.read_text() == "precious" and link.is_symlink() and Path("/dev/null").is_char_device()
