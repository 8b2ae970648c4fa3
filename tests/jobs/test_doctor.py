"""prophet-mx doctor as a process that looks at the MXNet that is installed."""

import json
import os
import shutil
from pathlib import Path

import pytest

from prophet_mx.doctor.checks import ERROR, OK, WARNING, Environment, check_mxnet
from prophet_mx.launcher.launch import free_port
from support.cluster import PACKAGE_PATH
from support.commands import prophet_mx
from support.doctor import JOB


def findings(done):
    """check -> (status, what was found and what to do) of the worst finding of that check."""
    found = {}
    for one in json.loads(done.stdout):
        if one["check"] not in found or one["status"] == ERROR:
            found[one["check"]] = one["status"], one["found"] + ": " + one["do"]
    return found


def test_a_healthy_machine():
    done = prophet_mx("doctor", "--scheduler", f"127.0.0.1:{free_port()}", env={"MXNET_CPU_WORKER_NTHREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    status = {line[1]: line[0] for line in lines[:-1]}
    assert all(
        status[name] == OK
        for name in (
            "python",
            "numpy",
            "mxnet",
            "dist_kvstore",
            "core",
            "engine",
            "van",
            "settings",
            "PORT",
            "tcp_info",
            "job",
            "scheduler",
        )
    ), done.stdout
    assert status.get("gpu") == OK or status["engine_threads"] == WARNING, done.stdout  # without a GPU, workers train on the CPU
    assert lines[-1][:2] == ["0", "errors,"]


def test_everything_that_is_wrong_is_named_at_once():
    done = prophet_mx(
        "doctor",
        "--json",
        env={
            **JOB,
            "DMLC_NODE_HOST": "203.0.113.77",
            "MXNET_ENGINE_TYPE": "NaiveEngine",
            "DMLC_PS_VAN_TYPE": "p3",
            "PORT": "8080",
            "PROPHET_POLICIES": "fifo",
            "PROPHET_UNIT": "5 apples",
            "PS_DROP_MSG": "10",
            "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN": "1000",
        },
    )
    assert done.returncode == 1, done.stderr
    found = findings(done)
    for check, part in {
        "engine": "NaiveEngine",
        "van": "p3",
        "PORT": "unset PORT",
        "nic": "203.0.113.77",
        "mxnet_settings": "PS_DROP_MSG",
    }.items():
        assert found[check][0] == ERROR and part in found[check][1], found
    settings = [one for one in json.loads(done.stdout) if one["check"] == "settings"]
    assert [one["status"] for one in settings] == [ERROR, ERROR]
    assert settings[0]["do"] == "did you mean PROPHET_POLICY?"
    assert "'5 apples'" in settings[1]["found"] and "256KiB" in settings[1]["do"]
    assert "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN=1000" in done.stdout
    assert found["mxnet"][0] == found["core"][0] == OK  # DMLC_ROLE and the like do not reach the probe


def test_without_the_compiled_module_it_still_runs_and_says_so(tmp_path):
    source = Path(PACKAGE_PATH, "prophet_mx")
    shutil.copytree(str(source), str(tmp_path / "prophet_mx"), ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (tmp_path / "prophet_mx" / "_core" / "__init__.pyi").write_text("")  # of another version than an installed package
    done = prophet_mx("doctor", "--json", env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1, done.stderr
    found = findings(done)
    assert found["mxnet"][0] == OK and found["core"][0] == ERROR and "pip install" in found["core"][1]


@pytest.mark.parametrize(
    "module, code, check, part",
    [
        ("mxnet", "raise AttributeError(\"module 'numpy' has no attribute 'bool'\")", "mxnet", "no attribute 'bool'"),
        ("mxnet", "import os; os._exit(134)", "mxnet", "134"),
        ("numpy", "__version__ = '1.24.3'", "numpy", "numpy<1.24"),
    ],
)
def test_a_broken_mxnet_or_numpy_is_told_in_words(tmp_path, module, code, check, part):
    (tmp_path / f"{module}.py").write_text(code + "\n")
    found = {one.check: one for one in check_mxnet(Environment({**os.environ, "PYTHONPATH": str(tmp_path)}))}
    assert found[check].status == ERROR and part in found[check].found + found[check].do, found
