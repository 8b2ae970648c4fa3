"""Lines and progress bars of several processes on one stream, and the files of --log-dir."""

import io
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_mx.errors import LaunchError
from prophet_mx.launcher.console import MAX_LINE, Console, LineSplitter, LogFolder, clipped, harmless


def final_lines(chunks):
    splitter = LineSplitter()
    shown = [item for chunk in chunks for item in splitter.feed(chunk)] + list(splitter.close())
    return [text for text, final in shown if final]


@pytest.mark.parametrize(
    "data, lines",
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\n\nb", ["a", "", "b"]),
        (b"windows\r\nline ends\r\n", ["windows", "line ends"]),
        (b"\r 10%\r 50%\r100%\nnext\n", ["100%", "next"]),
        (b"10%\r50%\r100%\r\nnext\n", ["100%", "next"]),
        ("Gewicht \u00fc\n".encode(), ["Gewicht \u00fc"]),
        (b"not utf-8 \xff\n", ["not utf-8 \ufffd"]),
    ],
)
def test_final_lines(data, lines):
    assert final_lines([data]) == lines
    assert final_lines([data[i : i + 1] for i in range(len(data))]) == lines


@given(st.text(alphabet="ab\r\n\u00fc", max_size=60), st.lists(st.integers(0, 80)))
def test_the_way_output_is_cut_into_chunks_does_not_change_its_lines(text, cuts):
    data = text.encode()
    edges = [0] + sorted(min(cut, len(data)) for cut in cuts) + [len(data)]
    assert final_lines([data[a:b] for a, b in zip(edges, edges[1:])]) == final_lines([data])


def test_a_line_without_end_is_not_kept_in_memory_for_ever():
    splitter = LineSplitter()
    shown = [item for _ in range(100) for item in splitter.feed(b"x" * 10000)]
    assert sum(len(text) for text, final in shown if final) >= 10**6 - MAX_LINE - 10000


def test_only_the_newest_state_of_a_bar_is_kept():
    redrawn = LineSplitter()
    states = [list(redrawn.feed(b"\rstep %d" % step)) for step in range(3)]
    assert states == [[("step 0", False)], [("step 1", False)], [("step 2", False)]]
    assert list(redrawn.feed(b"\n")) == [("step 2", True)]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_is_redrawn_on_a_terminal_and_other_lines_go_above_it():
    terminal = Terminal()
    console = Console(terminal)
    console("worker 0", " 10%", False)
    console("worker 1", "another bar", False)
    console("worker 1", "hello", True)
    console("worker 0", "100%", True)
    console("worker 1", "end", True)
    clear = "\r\x1b[K"
    assert terminal.getvalue() == (
        f"{clear}[worker 0]  10%{clear}[worker 1] hello\n[worker 0]  10%{clear}[worker 0] 100%\n[worker 1] end\n"
    )


def test_the_first_process_that_draws_a_bar_keeps_it():
    """Often only rank 0 draws one, and rank 0 may be any worker."""
    terminal = Terminal()
    console = Console(terminal)
    console("worker 0", "hello", True)
    console("worker 1", "50%", False)
    console("worker 0", "10%", False)
    console("worker 1", "100%", True)
    console("worker 0", "20%", False)
    clear = "\r\x1b[K"
    assert terminal.getvalue() == f"[worker 0] hello\n{clear}[worker 1] 50%{clear}[worker 1] 100%\n"


def test_without_a_terminal_a_bar_is_printed_once():
    log = io.StringIO()
    console = Console(log)
    console("worker 0", " 10%", False)
    console("worker 1", "hello", True)
    console("worker 0", "100%", True)
    assert log.getvalue() == "[worker 1] hello\n[worker 0] 100%\n"


def test_a_bar_wider_than_the_terminal_does_not_wrap(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    terminal = Terminal()
    Console(terminal)("worker 0", "x" * 100, False)
    assert terminal.getvalue() == "\r\x1b[K" + ("[worker 0] " + "x" * 100)[:39]


@pytest.mark.parametrize(
    "text, shown",
    [
        ("a\tb \u00fc \u4e2d", "a\tb \u00fc \u4e2d"),
        ("\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m\x1b[0m"),  # no colour goes on after its line
        ("\x1b[K 10%\x1b[0K", " 10%"),
        ("\x1b[2J\x1b[H", "^[[2J^[[H"),
        ("\x1b]0;title\x07", "^[]0;title^G"),
        ("\x1bP$q\x1b\\\x9b5n\x7f\x08", "^[P$q^[\\\\x9b5n^?^H"),
        ("\x1b[\x1b[31m31m", "^[[\x1b[31m31m\x1b[0m"),
        ("\x1b[>4;1m\x1b[?25l\x1b[6n", "^[[>4;1m^[[?25l^[[6n"),
    ],
)
def test_a_terminal_is_shown_control_characters_and_files_get_them(text, shown, tmp_path):
    assert harmless(text) == shown
    terminal, log = Terminal(), io.StringIO()
    for stream in (terminal, log):
        Console(stream)("worker 0", text, True)
    assert terminal.getvalue() == f"[worker 0] {shown}\n" and log.getvalue() == f"[worker 0] {text}\n"
    with LogFolder(str(tmp_path), LABELS, never) as logs:
        logs("worker 0", text, True)
    assert (tmp_path / "worker-0.log").read_text(encoding="utf-8") == text + "\n"


@given(st.text(alphabet="\x1b[]0;31mKJ\x9b\r\x07\x00a", max_size=30), st.integers(0, 30))
def test_nothing_but_colours_reaches_a_terminal(text, width):
    for shown in (harmless(text), clipped(harmless(text), width)):
        rest = re.sub(r"\x1b\[[0-9;:]*m", "", shown)
        assert not re.search(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]", rest)
    assert len(rest) == min(width, len(re.sub(r"\x1b\[[0-9;:]*m", "", harmless(text))))


LABELS = ["scheduler", "server 0", "worker 0"]


def never(label, text, final):
    raise AssertionError(text)


def texts(folder):
    return {name: (folder / name).read_text(encoding="utf-8") for name in sorted(os.listdir(folder))}


def test_each_process_has_a_file_and_the_launchers_lines_are_in_all(tmp_path):
    folder = tmp_path / "new" / "folder"
    with LogFolder(str(folder), LABELS, never) as logs:
        logs("worker 0", "10%", False)
        logs("worker 0", "100% \u00fc", True)
        logs("server 0", "ready", True)
        assert "100%" in (folder / "worker-0.log").read_text(encoding="utf-8")  # while the job runs
        logs("launch", "server 0 was killed by SIGKILL", True)
    said = "[launch] server 0 was killed by SIGKILL\n"
    assert texts(folder) == {
        "launch.log": said,
        "scheduler.log": said,
        "server-0.log": "ready\n" + said,
        "worker-0.log": "100% \u00fc\n" + said,
    }


def test_the_files_of_an_earlier_job_are_replaced(tmp_path):
    for line in ("old", "new"):
        with LogFolder(str(tmp_path), LABELS, never) as logs:
            logs("worker 0", line, True)
    assert texts(tmp_path)["worker-0.log"] == "new\n"


def test_a_full_disk_is_told_once_and_the_others_are_written_on(tmp_path):
    (tmp_path / "worker-0.log").symlink_to("/dev/full")
    told = []
    with LogFolder(str(tmp_path), LABELS, lambda *line: told.append(line)) as logs:
        for _ in range(3):
            logs("worker 0", "line", True)
            logs("server 0", "line", True)
    assert (tmp_path / "server-0.log").read_text() == "line\n" * 3
    [(label, text, final)] = told
    assert (label, final) == ("launch", True) and "worker-0.log is no longer written: No space left on device" in text


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LaunchError, match=r"^--log-dir '.*file/logs' is not allowed \(Not a directory\); allowed: a folder"):
        LogFolder(str(tmp_path / "file" / "logs"), LABELS, never)
