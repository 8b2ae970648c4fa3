"""What the launcher plans: which processes with which variables, and where it starts none."""

import json
import os
import re
import socket

import pytest

from prophet_mx.launcher import launch
from prophet_mx.launcher.hosts import Host
from prophet_mx.launcher.launch import LaunchError, free_port, run_job
from prophet_mx.launcher.plans import plan_hosts, plan_job
from prophet_mx.launcher.ssh import Ssh


def test_an_interface_is_handed_on_in_place_of_addresses(monkeypatch):
    hosts = [Host("gpu1", 1, "10.0.0.1"), Host("gpu2", 1, "10.0.0.2")]
    ssh = Ssh((), "python", "/")
    assert [plan.env["DMLC_NODE_HOST"] for plan in plan_hosts(["true"], hosts, ssh)] == [
        "10.0.0.1",
        "10.0.0.1",
        "10.0.0.2",
        "10.0.0.2",  # of the workers, ps-lite's rank 0 has the greatest address
        "10.0.0.1",
    ]
    monkeypatch.setenv("DMLC_INTERFACE", "eth1")
    assert [plan.host.name for plan in plan_hosts(["true"], hosts, ssh)] == ["gpu1", "gpu1", "gpu2", "gpu1", "gpu2"]  # addresses unknown
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
    assert re.fullmatch(r"0:\d+", plans[-1].env["PROPHETMX_WORKER"])
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
            **({"PROPHETMX_WORKER": plans[-1].env["PROPHETMX_WORKER"]} if role == "worker" else {}),
        }
        for role in ("scheduler", "server", "worker")
    ]


GPU_HOSTS = [Host("gpu1", 2, "10.0.0.1"), Host("gpu2", 1, "10.0.0.2")]


@pytest.mark.parametrize(
    "count, env, seen",
    [
        (1, {}, {"gpu1": ["0", "1"], "gpu2": ["0"]}),
        (2, {}, {"gpu1": ["0,1", "2,3"], "gpu2": ["0,1"]}),
        (2, {"CUDA_VISIBLE_DEVICES": "7,5,3,1"}, {"gpu1": ["7,5", "3,1"], "gpu2": ["7,5"]}),
    ],
)
def test_workers_of_a_host_share_its_gpus(count, env, seen, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "9")  # of this machine, not of the hosts
    plans = plan_hosts(["true"], GPU_HOSTS, Ssh((), "python", "/"), env=env, gpus_per_worker=count)
    of_workers = {
        host: [plan.env["CUDA_VISIBLE_DEVICES"] for plan in plans if plan.role == "worker" and plan.host.name == host] for host in seen
    }
    assert of_workers == seen
    assert {plan.env.get("CUDA_VISIBLE_DEVICES") for plan in plans if plan.role != "worker"} == {env.get("CUDA_VISIBLE_DEVICES")}
    assert all(json.loads(plan.spec.decode())["env"] == plan.env for plan in plans)


def test_workers_of_this_machine_share_the_gpus_that_are_named(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a1,GPU-b2,GPU-c3")
    plans = plan_job(["true"], 3, 1, gpus_per_worker=1)
    assert [plan.env.get("CUDA_VISIBLE_DEVICES") for plan in plans] == [None, None, "GPU-a1", "GPU-b2", "GPU-c3"]
    assert all("CUDA_VISIBLE_DEVICES" not in plan.env for plan in plan_job(["true"], 3, 1))
    with pytest.raises(LaunchError, match="--gpus-per-worker 2 is not allowed for 3 worker.*GPU-c3; allowed: a list of at least 6 GPUs"):
        plan_job(["true"], 3, 1, gpus_per_worker=2)


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


def test_workers_get_ports_in_the_order_of_their_numbers():
    """Each a port of its own: then ps-lite's scheduler gives them ranks in this order."""
    for plans in (plan_job(["true"], 4, 1), plan_hosts(["true"], [Host("gpu1", 4, "10.0.0.1")], Ssh((), "python", "/"))):
        said = [plan.env["PROPHETMX_WORKER"].split(":") for plan in plans if plan.role == "worker"]
        assert [index for index, _ in said] == ["0", "1", "2", "3"]
        ports = [int(port) for _, port in said]
        assert ports == sorted(set(ports)) and plans[0].env["DMLC_PS_ROOT_PORT"] not in map(str, ports)


def test_pauses_before_restarts_double_up_to_a_minute(monkeypatch):
    pauses = []
    monkeypatch.setattr(launch, "_sleep", lambda seconds, seen: pauses.append(seconds))
    monkeypatch.setattr(launch, "_run", lambda *arguments: launch.JobResult(137, "lost", (), lost=True))
    lines = []
    result = run_job(["true"], restarts=9, sink=lambda label, text, final: lines.append(text))
    assert result.lost and pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert (lines[0], lines[-1]) == ("restart 1 of 9 in 1 s", "restart 9 of 9 in 60 s")
