"""prophet-mx doctor: each fault of a machine or an environment is named, with what to do, and decides the exit code."""
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import prophet_mx
from prophet_mx.doctor.checks import ERROR, OK, WARNING, Job, check_files, check_job, check_mxnet, check_port_variable, check_settings
from prophet_mx.doctor.network import check_nic, check_scheduler, local_port_range, no_answer
from prophet_mx.launcher.launch import free_port
from support.cluster import package_env

JOB = {"DMLC_ROLE": "worker", "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": "9091", "DMLC_NUM_WORKER": "2",
       "DMLC_NUM_SERVER": "1"}


def doctor(*arguments, env=None, package=None):
    environ = {**os.environ, **package_env(env)}
    if package:
        environ["PYTHONPATH"] = str(package)
    return subprocess.run([sys.executable, "-m", "prophet_mx", "doctor", *arguments], env=environ, timeout=120,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)


def findings(done):
    """check -> (status, what was found and what to do) of the worst finding of that check."""
    found = {}
    for one in json.loads(done.stdout):
        if one["check"] not in found or one["status"] == ERROR:
            found[one["check"]] = one["status"], one["found"] + ": " + one["do"]
    return found


def test_a_healthy_machine():
    done = doctor("--scheduler", f"127.0.0.1:{free_port()}")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    status = {line[1]: line[0] for line in lines[:-1]}
    assert all(status[name] == OK for name in ("python", "numpy", "mxnet", "dist_kvstore", "core", "engine", "van", "settings",
                                               "PORT", "tcp_info", "job", "scheduler")), done.stdout
    assert lines[-1][-1] == "error" and lines[-1][-2] == "0"


def test_everything_that_is_wrong_is_named_at_once():
    done = doctor("--json", env={
        **JOB, "DMLC_NODE_HOST": "203.0.113.77", "MXNET_ENGINE_TYPE": "NaiveEngine", "DMLC_PS_VAN_TYPE": "p3", "PORT": "8080",
        "PROPHET_POLICIES": "fifo", "PROPHET_UNIT": "5 apples", "PS_DROP_MSG": "10", "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN": "1000"})
    assert done.returncode == 1, done.stderr
    found = findings(done)
    for check, part in {"engine": "NaiveEngine", "van": "p3", "PORT": "unset PORT", "nic": "203.0.113.77",
                        "mxnet_settings": "PS_DROP_MSG"}.items():
        assert found[check][0] == ERROR and part in found[check][1], found
    settings = [one for one in json.loads(done.stdout) if one["check"] == "settings"]
    assert [one["status"] for one in settings] == [ERROR, ERROR]
    assert settings[0]["do"] == "did you mean PROPHET_POLICY?"
    assert "'5 apples'" in settings[1]["found"] and "256KiB" in settings[1]["do"]
    assert "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN=1000" in done.stdout
    assert found["mxnet"][0] == found["core"][0] == OK          # DMLC_ROLE and the like do not reach the probe


def test_warnings_count_only_if_asked(monkeypatch):
    # In this process: nothing here needs the slow look at MXNet.
    from prophet_mx.cli.main import main
    from prophet_mx.doctor import examination

    monkeypatch.setattr(examination, "CHECKS", (check_port_variable,))
    monkeypatch.setenv("PORT", "80")
    assert main(["doctor"]) == 0
    assert main(["doctor", "--strict"]) == 1
    monkeypatch.delenv("PORT")
    assert main(["doctor", "--strict"]) == 0


def test_without_the_compiled_module_it_still_runs_and_says_so(tmp_path):
    source = Path(prophet_mx.__file__).parent
    shutil.copytree(str(source), str(tmp_path / "prophet_mx"), ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    done = doctor("--json", package=tmp_path)
    assert done.returncode == 1, done.stderr
    found = findings(done)
    assert found["mxnet"][0] == OK and found["core"][0] == ERROR and "pip install" in found["core"][1]


@pytest.mark.parametrize("module, code, check, part", [
    ("mxnet", "raise AttributeError(\"module 'numpy' has no attribute 'bool'\")", "mxnet", "no attribute 'bool'"),
    ("mxnet", "import os; os._exit(134)", "mxnet", "134"),
    ("numpy", "__version__ = '1.24.3'", "numpy", "numpy<1.24"),
])
def test_a_broken_mxnet_or_numpy_is_told_in_words(tmp_path, module, code, check, part):
    (tmp_path / f"{module}.py").write_text(code + "\n")
    found = {one.check: one for one in check_mxnet(Job({**os.environ, "PYTHONPATH": str(tmp_path)}))}
    assert found[check].status == ERROR and part in found[check].found + found[check].do, found


def only(findings):
    [one] = findings
    return one


def test_the_scheduler_port():
    port = free_port()
    job = Job({}, ("127.0.0.1", port))
    assert only(check_scheduler(job)).status == OK and "free" in only(check_scheduler(job)).found
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))         # taken, but nobody listens
        assert only(check_scheduler(job)).status == ERROR
        taken.listen(1)
        assert "answers" in only(check_scheduler(job)).found
    low, _ = local_port_range()
    assert f"below {low}" in next(iter(check_scheduler(Job({}, ("127.0.0.1", low + 1))))).do
    lost = only(check_scheduler(Job({}, ("no-such-host.invalid", port))))
    assert lost.status == ERROR and "DMLC_PS_ROOT_URI" in lost.do


@pytest.mark.parametrize("reason, status, part", [
    ("refused", WARNING, "start the scheduler first"), ("timed out", ERROR, "firewalls")])
def test_a_scheduler_elsewhere_that_does_not_answer(reason, status, part):
    found = no_answer("198.51.100.1:9091", reason)
    assert found.status == status and part in found.do


@pytest.mark.parametrize("change, status, part", [
    ({}, OK, "worker of a job with 2 worker(s)"), ({"DMLC_NUM_SERVER": "0"}, ERROR, "DMLC_NUM_SERVER=0"),
    ({"DMLC_ROLE": "boss"}, ERROR, "boss"), ({"DMLC_PS_ROOT_URI": ""}, ERROR, "DMLC_PS_ROOT_URI not set")])
def test_the_variables_of_a_job(change, status, part):
    found = only(check_job(Job({**JOB, **change})))
    assert found.status == status and part in found.found


def test_the_interface():
    loopback = next(name for name, addresses in psutil.net_if_addrs().items() if any(a.address == "127.0.0.1" for a in addresses))
    assert only(check_nic(Job({"DMLC_INTERFACE": loopback}))).status == OK
    assert only(check_nic(Job({"DMLC_INTERFACE": "nosuch0"}))).status == ERROR
    assert only(check_nic(Job({"DMLC_NODE_HOST": "127.0.0.1"}))).status == OK
    found = only(check_nic(Job({}, ("127.0.0.1", 9091)), [("eth0", "192.0.2.1"), ("ib0", "127.0.0.1")]))
    assert found.status == WARNING and "takes the first, eth0" in found.found and "such as ib0" in found.do


def test_an_endpoint_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)     # as if it were not installed
    found = only(check_settings(Job({"PROPHET_METRICS_PORT": "9400"})))
    assert found.status == ERROR and "prophet_mx[metrics]" in found.do


def test_the_limit_of_open_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
        assert only(check_files(Job(JOB))).status == OK
        found = only(check_files(Job({**JOB, "DMLC_NUM_WORKER": "64"})))
        assert found.status == ERROR and found.do.startswith("ulimit -n")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("text", ["host", "host:", ":9091", "host:0", "host:65536", "host:x"])
def test_a_wrong_scheduler_is_one_line(text):
    from prophet_mx.cli.main import main

    with pytest.raises(SystemExit) as error:
        main(["doctor", "--scheduler", text])
    assert error.value.code == 2
