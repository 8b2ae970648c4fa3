"""What ``prophet-mx launch --hostfile`` tells ssh and sends to the hosts, and hosts that do not answer: without a host that does."""
import json
import os
import shutil
import socket
import subprocess
from types import SimpleNamespace

import pytest

import prophet_mx.launcher.launch as launch_module
from jobs.test_cli import cli
from prophet_mx.launcher.hosts import Host
from prophet_mx.launcher.launch import Plan, plan_hosts, run_plans
from prophet_mx.launcher.ssh import Ssh

LIMIT = 50      # seconds: far more than anything here needs

needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh (Debian: apt-get install openssh-client)")


@needs_ssh
def test_a_host_that_never_answers_is_a_failure(tmp_path):
    (tmp_path / "hosts").write_text("127.0.0.1\n")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        done = cli("launch", "--hostfile", str(tmp_path / "hosts"), "--ssh-option", f"Port={silent.getsockname()[1]}",
                   "--ssh-option", "ConnectTimeout=1", "--", "true")
    assert done.returncode == 255, done.stdout + done.stderr
    assert "ended with code 255 (ssh's code for a connection that failed)" in done.stdout


@needs_ssh
def test_a_host_has_a_minute_to_answer():
    """As ssh itself understands what the launcher tells it: it gives up when one question more than the allowed number is due."""
    command = Ssh((), "python", "/").command(Host("gpu1"), {})
    known = subprocess.run([command[0], "-G", *command[1:-1]], timeout=LIMIT, stdout=subprocess.PIPE, universal_newlines=True).stdout
    options = dict(line.split(None, 1) for line in known.splitlines() if " " in line)
    assert int(options["serveraliveinterval"]) * (int(options["serveralivecountmax"]) + 1) == 60
    assert int(options["connecttimeout"]) < 60 and options["batchmode"] == "yes"


def test_an_interface_is_handed_on_in_place_of_addresses(monkeypatch):
    hosts = [Host("gpu1", 1, "10.0.0.1"), Host("gpu2", 1, "10.0.0.2")]
    ssh = Ssh((), "python", "/")
    assert [plan.env["DMLC_NODE_HOST"] for plan in plan_hosts(["true"], hosts, ssh)] == ["10.0.0.1", "10.0.0.1", "10.0.0.2",
                                                                                        "10.0.0.1", "10.0.0.2"]
    monkeypatch.setenv("DMLC_INTERFACE", "eth1")
    for plan in plan_hosts(["true"], hosts, ssh):
        assert plan.env["DMLC_INTERFACE"] == "eth1" and "DMLC_NODE_HOST" not in plan.env
        assert json.loads(plan.spec.decode())["env"] == plan.env


def test_what_is_forwarded_without_being_named(monkeypatch):
    monkeypatch.setattr(os, "environ", {"DMLC_PS_VERBOSE": "1", "PROPHET_UNIT": "2", "MXNET_ENGINE_TYPE": "3", "PS_VERBOSE": "4",
                                        "BYTESCHEDULER_CREDIT": "5", "PORT": "6", "HOME": "7", "MY_PS_": "8",
                                        "DMLC_ROLE": "9", "DMLC_NUM_WORKER": "10", "DMLC_NODE_HOST": "11"})
    plans = plan_hosts(["true"], [Host("gpu1", 1, "10.0.0.1")], Ssh((), "python", "/"), env={"NAMED": "12"}, port=9091)
    assert [plan.env for plan in plans] == [{
        "DMLC_PS_VERBOSE": "1", "PROPHET_UNIT": "2", "MXNET_ENGINE_TYPE": "3", "PS_VERBOSE": "4", "BYTESCHEDULER_CREDIT": "5",
        "NAMED": "12", "DMLC_PS_ROOT_URI": "10.0.0.1", "DMLC_PS_ROOT_PORT": "9091", "DMLC_NUM_WORKER": "1", "DMLC_NUM_SERVER": "1",
        "DMLC_NODE_HOST": "10.0.0.1", "DMLC_ROLE": role} for role in ("scheduler", "server", "worker")]


def test_a_host_with_many_processes_gets_pauses_between_connections(monkeypatch):
    pauses = []
    monkeypatch.setattr(launch_module, "time", SimpleNamespace(sleep=pauses.append))
    plans = [Plan("worker", index, ["true"], {}, Host(name), b"{}") for name, count in (("a", 9), ("b", 7)) for index in range(count)]
    assert run_plans(plans, timeout=LIMIT).exit_code == 0
    assert len(pauses) == 1
