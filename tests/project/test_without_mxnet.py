"""Where neither MXNet nor PyTorch is installed: the package imports, its commands work, and only the adapters are missing, with words
how to get them."""

import json
import os
import sys

import pytest

from support import commands
from support.cluster import PACKAGE_PATH

JOB = ["--model", "mobilenetv2", "--compute", "100ms", "--servers", "1"]

# Python runs this before anything else, in this process and in those that it starts: import and find_spec go as if there were neither.
NOT_INSTALLED = "import sys\nsys.modules['mxnet'] = sys.modules['torch'] = None\n"

EVERY_MODULE = """
import importlib, pkgutil
import prophet_mx
for module in pkgutil.walk_packages(prophet_mx.__path__, "prophet_mx.", onerror=lambda name: None):
    adapters = ("prophet_mx.mxnet", "prophet_mx.torch", "prophet_mx.horovod", "prophet_mx.launcher.bootstrap.")
    if not module.name.startswith(adapters) and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
        print(module.name)
"""


@pytest.fixture
def python(tmp_path):
    """Run Python without MXNet and PyTorch, in an empty folder."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(NOT_INSTALLED)
    path = os.pathsep.join([str(tmp_path / "site"), PACKAGE_PATH])

    def run(*arguments):
        return commands.python(*arguments, env={"PYTHONPATH": path}, cwd=tmp_path, light=False, timeout=120)

    return run


@pytest.mark.parametrize("line", ["from prophet_mx import ScheduledKVStore", "from prophet_mx.mxnet.kvstore import ScheduledKVStore"])
def test_the_store_says_how_to_install_mxnet(python, line):
    done = python("-c", f"import prophet_mx, prophet_mx.config\nprint(prophet_mx.Config().policy)\n{line}")
    assert done.returncode == 1 and done.stdout == "prophet\n"
    message = done.stderr.splitlines()[-1]
    assert "MXNetMissingError" in message and "MXNet 1.9.1" in message
    assert "pip install mxnet==1.9.1 'numpy<1.24'" in message and "pip install mxnet-cu112==1.9.1 'numpy<1.24'" in message


@pytest.mark.parametrize("line", ["from prophet_mx.torch import ScheduledOptimizer", "import prophet_mx.horovod as hvd"])
def test_the_optimizer_says_how_to_install_pytorch(python, line):
    done = python("-c", line)
    assert done.returncode == 1
    message = done.stderr.splitlines()[-1]
    assert "MissingPackageError" in message and "pip install 'torch>=2.1'" in message


def test_every_module_but_the_adapters_can_be_imported(python):
    done = python("-c", EVERY_MODULE)
    assert done.returncode == 0, done.stderr
    assert {"prophet_mx.config", "prophet_mx.simulation.simulator", "prophet_mx.monitoring.metrics"} <= set(done.stdout.split())


def test_doctor_names_what_is_missing_in_one_line_and_goes_on(python):
    done = python("-m", "prophet_mx", "doctor")
    assert done.returncode == 1 and not done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("error")]
    assert line.split()[1] == "mxnet" and "neither MXNet 1.9.1 nor PyTorch is installed: pip install mxnet==1.9.1" in line
    assert "for PyTorch: pip install 'torch>=2.1'" in line
    assert [line for line in done.stdout.splitlines() if line.split()[:2] == ["ok", "tcp_info"]]


@pytest.mark.parametrize(
    "arguments, part",
    [
        (["simulate", *JOB, "--bandwidth", "1Gbit", "--policy", "prophet", "--iterations", "1"], "prophet  "),
        (["predict", *JOB, "--bandwidth", "1Gbit", "--policy", "prophet", "--no-range"], "Scheduling helps: "),
        (["launch", "--dry-run", "--schedule", "--", sys.executable, "train.py"], "DMLC_ROLE=worker"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_command_works(python, arguments, part):
    done = python("-m", "prophet_mx", *arguments)
    assert done.returncode == 0, done.stderr
    assert part in done.stdout


def test_report_works(python, tmp_path):
    """On a trace of two iterations of one unit."""
    head = {"format": "prophet_mx timeline 1", "rank": 0, "workers": 1, "servers": 1, "policy": "prophet"}
    unit = {"name": "w", "parameter": "w", "unit": 0, "gradient": 0, "bytes": 1000, "link": 0, "rank": 0}
    events = [
        {"ph": "M", "name": "prophet_mx", "pid": 1, "args": head},
        {"ph": "M", "name": "thread_name", "pid": 2, "tid": 1, "args": unit},
    ]
    for number in range(3):
        events += [
            {
                "ph": "X",
                "name": name,
                "pid": process,
                "tid": 1,
                "ts": 1000 * number,
                "dur": size,
                "args": {"iteration": number, "step": 0, "block": number},
            }
            for name, process, size in (("wait", 2, 1), ("wire", 2, 10), ("answer", 2, 10), ("iteration", 1, 1000))
        ]
    (tmp_path / "trace-0.json").write_text(json.dumps(events))
    done = python("-m", "prophet_mx", "report", "trace-0.json")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
