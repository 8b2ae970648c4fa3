"""Files that a user names: only files are read, and pipes where a command line may have one. Nothing waits for ever."""

import os
import threading

import pytest

from prophet_mx.cli.main import main
from prophet_mx.errors import ProfileError
from prophet_mx.profiling.gradient_profile import GradientProfile
from prophet_mx.user_files import read_text
from support.profiles import make_profile
from support.traces import made, written


@pytest.fixture
def pipe(tmp_path):
    """A pipe into which nobody writes."""
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def through(pipe, text):
    """A pipe into which a text is being written, as a shell makes it of <(command)."""
    threading.Thread(target=lambda: pipe.write_text(text), daemon=True).start()
    return str(pipe)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("path", ["/dev/zero", "/dev/tty", "/dev/null", "PIPE"])
def test_a_job_s_profile_is_read_from_a_file_alone(path, pipe):
    with pytest.raises(ProfileError, match="not a regular file|No such device"):
        GradientProfile.load(str(pipe) if path == "PIPE" else path)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "words",
    [
        ["report", "/dev/zero"],
        ["predict", "--profile", "/dev/zero", "--bandwidth", "1Gbit"],
        ["launch", "--hostfile", "/dev/zero", "--", "true"],
    ],
    ids="/".join,
)
def test_commands_read_no_device(words, capsys):
    assert code(words) == 2
    assert "it is not a regular file or a pipe" in capsys.readouterr().err


@pytest.mark.timeout(20)
def test_commands_read_pipes(pipe, tmp_path, capsys):
    profile = make_profile([400, 40], [0.1, 0.1], [0.1, 0.1])
    assert GradientProfile.load(through(pipe, profile.to_json()), pipes=True) == profile
    assert code(["launch", "--hostfile", through(pipe, "localhost"), "-n", "3", "--", "true"]) == 2
    assert "--workers 3" in capsys.readouterr().err  # it has read how many slots there are
    pytest.importorskip("jinja2")
    trace = written(tmp_path / "t.json", made()).read_text()
    assert code(["report", through(pipe, trace), "-o", str(tmp_path / "page.html")]) == 0


def code(words):
    try:
        return main(words)
    except SystemExit as end:
        return end.code


def test_what_cannot_be_read_says_why(tmp_path):
    (tmp_path / "text").write_text("whole")
    assert read_text(str(tmp_path / "text")) == "whole"
    for path, kind in ((tmp_path, IsADirectoryError), (tmp_path / "no", FileNotFoundError)):
        with pytest.raises(kind):
            read_text(str(path), pipes=True)
