"""What the launcher plans: which processes with which variables, and where it starts none."""

import json
import os
import socket

import pytest

from prophet_mx.launcher.hosts import Host
from prophet_mx.launcher.launch import LaunchError, free_port, run_job
from prophet_mx.launcher.plans import plan_hosts
from prophet_mx.launcher.ssh import Ssh


def test_an_interface_is_handed_on_in_place_of_addresses(monkeypatch):
    hosts = [Host("gpu1", 1, "10.0.0.1"), Host("gpu2", 1, "10.0.0.2")]
    ssh = Ssh((), "python", "/")
    assert [plan.env["DMLC_NODE_HOST"] for plan in plan_hosts(["true"], hosts, ssh)] == [
        "10.0.0.1",
        "10.0.0.1",
        "10.0.0.2",
        "10.0.0.1",
        "10.0.0.2",
    ]
    monkeypatch.setenv("DMLC_INTERFACE", "eth1")
    for plan in plan_hosts(["true"], hosts, ssh):
        assert plan.env["DMLC_INTERFACE"] == "eth1" and "DMLC_NODE_HOST" not in plan.env
        assert json.loads(plan.spec.decode())["env"] == plan.env


def test_what_is_forwarded_without_being_named(monkeypatch):
    monkeypatch.setattr(
        os,
        "environ",
        {
            "DMLC_PS_VERBOSE": "1",
            "PROPHET_UNIT": "2",
            "MXNET_ENGINE_TYPE": "3",
            "PS_VERBOSE": "4",
            "BYTESCHEDULER_CREDIT": "5",
            "PORT": "6",
            "HOME": "7",
            "MY_PS_": "8",
            "DMLC_ROLE": "9",
            "DMLC_NUM_WORKER": "10",
            "DMLC_NODE_HOST": "11",
        },
    )
    plans = plan_hosts(["true"], [Host("gpu1", 1, "10.0.0.1")], Ssh((), "python", "/"), env={"NAMED": "12"}, port=9091)
    assert [plan.env for plan in plans] == [
        {
            "DMLC_PS_VERBOSE": "1",
            "PROPHET_UNIT": "2",
            "MXNET_ENGINE_TYPE": "3",
            "PS_VERBOSE": "4",
            "BYTESCHEDULER_CREDIT": "5",
            "NAMED": "12",
            "DMLC_PS_ROOT_URI": "10.0.0.1",
            "DMLC_PS_ROOT_PORT": "9091",
            "DMLC_NUM_WORKER": "1",
            "DMLC_NUM_SERVER": "1",
            "DMLC_NODE_HOST": "10.0.0.1",
            "DMLC_ROLE": role,
        }
        for role in ("scheduler", "server", "worker")
    ]


def test_free_port_can_be_listened_on_and_no_connection_takes_it_by_chance():
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        low, high = map(int, file.read().split())
    ports = [free_port() for _ in range(20)]
    assert len(set(ports)) > 1
    for port in ports:
        assert low <= 11000 or not low <= port <= high
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))


@pytest.mark.parametrize(
    "arguments, parts",
    [
        ((["true"], 0, 1), ["workers=0", "1 to 512"]),
        ((["true"], 1, 513), ["servers=513", "1 to 512"]),
        (([], 1, 1), ["''", "program"]),
        ((["no-such-program"], 1, 1), ["'no-such-program'", "PATH"]),
    ],
)
def test_what_cannot_be_started(arguments, parts):
    with pytest.raises(LaunchError) as caught:
        run_job(*arguments, timeout=30)
    assert all(part in str(caught.value) for part in parts), caught.value
