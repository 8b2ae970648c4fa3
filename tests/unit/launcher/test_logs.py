"""The files of --log-dir."""

import os

import pytest

from prophet_mx.errors import LaunchError
from prophet_mx.launcher.logs import LogFolder

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
    with pytest.raises(LaunchError, match="--log-dir .*file/logs is not allowed .*Not a directory.*; allowed: a folder"):
        LogFolder(str(tmp_path / "file" / "logs"), LABELS, never)
