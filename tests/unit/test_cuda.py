"""Where the libraries of NVIDIA's pip packages are found, and that they come after the user's own."""

import json
import os
import re
import subprocess
import sys

import pytest

from prophet_mx.cuda import LIBRARIES, library_folders, with_libraries
from prophet_mx.launcher.plans import plan_job
from support.cluster import PACKAGE_PATH, package_env
from support.commands import LIMIT
from support.cuda import packages


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Those of this Python."""
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    found = packages(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return found


def test_the_packages_folders_come_after_the_users_own(folders):
    assert library_folders() == folders and len(folders) == len(LIBRARIES)
    ours = ":".join(folders)
    assert with_libraries({}) == with_libraries({"LD_LIBRARY_PATH": ""}) == {"LD_LIBRARY_PATH": ours}
    assert with_libraries({"LD_LIBRARY_PATH": "/mine::/other"}) == {"LD_LIBRARY_PATH": "/mine::/other:" + ours}
    assert with_libraries({"LD_LIBRARY_PATH": ours}) == {}  # the line that doctor prints was exported
    assert with_libraries({"LD_LIBRARY_PATH": folders[3]})["LD_LIBRARY_PATH"].count(folders[3]) == 1


def test_without_the_packages_nothing_is_set(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    assert library_folders() == [] and with_libraries({"LD_LIBRARY_PATH": "/mine"}) == {}


def test_the_folders_are_those_of_the_python_that_runs_the_script(folders, tmp_path):
    there = packages(tmp_path / "other site")
    other, broken = tmp_path / "bin" / "python3.9", tmp_path / "bin" / "python3.8"
    other.parent.mkdir()
    other.write_text(f"#!/bin/sh\necho banner\necho '{tmp_path}/other site/nvidia'\n")
    broken.write_text("#!/bin/sh\nexit 1\n")
    for path in (other, broken):
        path.chmod(0o755)
    environ = {"PATH": str(other.parent)}
    for command in ([str(other), "train.py"], ["python3.9", "train.py"]):
        assert with_libraries(environ, command) == {"LD_LIBRARY_PATH": ":".join(there)}
    assert with_libraries(environ, [str(broken), "train.py"]) == {}
    for command in ([sys.executable, "train.py"], ["./train.sh"], ["python3.10", "train.py"], []):
        assert with_libraries(environ, command) == {"LD_LIBRARY_PATH": ":".join(folders)}


def test_a_real_python_is_asked(tmp_path, monkeypatch):
    """This one, under another name."""
    there = packages(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    link = tmp_path / "python3"
    link.symlink_to(sys.executable)
    assert library_folders(str(link)) == there


def test_every_process_of_a_job_gets_them(folders, tmp_path):
    plans = plan_job(["true"], 2, 1, env={"LD_LIBRARY_PATH": "/mine"}, role_env={"worker 1": {"LD_LIBRARY_PATH": "/its own"}})
    ours = ":".join(["", *folders])
    assert [plan.env["LD_LIBRARY_PATH"] for plan in plans] == ["/mine" + ours] * 3 + ["/its own" + ours]


def test_so_does_a_process_on_another_host(tmp_path):
    folders = packages(tmp_path / "site")
    spec = {
        "command": ["/bin/sh", "-c", "echo $LD_LIBRARY_PATH"],
        "env": {"DMLC_ROLE": "worker", "LD_LIBRARY_PATH": "/mine"},
        "directory": str(tmp_path),
        "grace": 1,
        "sharers": 1,
        "schedule": False,
    }
    env = {**os.environ, **package_env({"PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), PACKAGE_PATH])})}
    command = [sys.executable, "-m", "prophet_mx.remote"]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as remote:
        remote.stdin.write(json.dumps(spec) + "\n")
        remote.stdin.flush()  # the end of the input would end the process
        assert remote.stdout.read() == ":".join(["/mine", *folders]) + "\n"
        assert remote.wait(LIMIT) == 0


def test_the_requirements_keep_the_libraries_names():
    """An upper bound for each: the next main version has other names."""
    assert all(re.fullmatch(r"nvidia-[\w-]+-cu11>=[\d.]+,<\d+", requirement) for requirement in LIBRARIES.values())
