"""What prophet-mx doctor finds of the network."""

import socket

import psutil
import pytest

from prophet_mx.doctor.checks import ERROR, OK, WARNING, Environment
from prophet_mx.doctor.network import check_link, check_nic, check_scheduler, local_port_range, no_answer
from prophet_mx.launcher.launch import free_port
from support.doctor import only


def test_the_scheduler_port():
    port = free_port()
    job = Environment({}, ("127.0.0.1", port))
    assert only(check_scheduler(job)).status == OK and "free" in only(check_scheduler(job)).found
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))  # taken, but nobody listens
        assert only(check_scheduler(job)).status == ERROR
        taken.listen(1)
        assert "answers" in only(check_scheduler(job)).found
    low, _ = local_port_range()
    assert f"below {low}" in next(iter(check_scheduler(Environment({}, ("127.0.0.1", low + 1))))).do
    lost = only(check_scheduler(Environment({}, ("no-such-host.invalid", port))))
    assert lost.status == ERROR and "DMLC_PS_ROOT_URI" in lost.do


@pytest.mark.parametrize("reason, status, part", [("refused", WARNING, "start the scheduler first"), ("timed out", ERROR, "firewalls")])
def test_a_scheduler_elsewhere_that_does_not_answer(reason, status, part):
    found = no_answer("198.51.100.1:9091", reason)
    assert found.status == status and part in found.do


def test_the_interface():
    loopback = next(name for name, addresses in psutil.net_if_addrs().items() if any(a.address == "127.0.0.1" for a in addresses))
    assert only(check_nic(Environment({"DMLC_INTERFACE": loopback}))).status == OK
    assert only(check_nic(Environment({"DMLC_INTERFACE": "nosuch0"}))).status == ERROR
    assert only(check_nic(Environment({"DMLC_NODE_HOST": "127.0.0.1"}))).status == OK
    found = only(check_nic(Environment({}, ("127.0.0.1", 9091)), [("eth0", "192.0.2.1"), ("ib0", "127.0.0.1")]))
    assert found.status == WARNING and "uses the first, eth0" in found.found and "such as ib0" in found.do


TWO = [("eth0", "192.0.2.1"), ("ib0", "198.51.100.1")]


@pytest.mark.parametrize(
    "speeds, environ, status, parts",
    [
        ({"eth0": "10000"}, {}, OK, ["eth0 runs at 10 Gbit/s"]),
        ({"eth0": "100"}, {}, WARNING, ["eth0 runs at 100 Mbit/s", "cable"]),
        ({"eth0": "1000", "ib0": "100000"}, {}, WARNING, ["eth0 runs at 1 Gbit/s, ib0 at 100 Gbit/s", "DMLC_INTERFACE=ib0"]),
        ({"eth0": "10000"}, {"PROPHET_BANDWIDTH": "25Gbit"}, WARNING, ["10 Gbit/s, below PROPHET_BANDWIDTH=25 Gbit/s", "unset"]),
        ({"eth0": "10000"}, {"PROPHET_BANDWIDTH": "5Gbit"}, OK, ["eth0 runs at 10 Gbit/s"]),
        ({"eth0": "10000"}, {"PROPHET_BANDWIDTH": "fast"}, OK, ["eth0 runs at 10 Gbit/s"]),
        ({"eth0": "-1"}, {}, OK, ["eth0", "does not know"]),
        ({}, {}, OK, ["eth0", "does not know"]),
        ({"ib0": "100000"}, {}, OK, ["eth0", "does not know"]),
        ({"eth0": "100"}, {"DMLC_NODE_HOST": "127.0.0.1"}, OK, ["loopback"]),
    ],
)
def test_the_speed_of_the_link_that_is_used(speeds, environ, status, parts, tmp_path):
    for name, speed in speeds.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "speed").write_text(speed + "\n")
    found = only(check_link(Environment(environ), TWO, tmp_path))
    assert found.status == status and all(part in found.found + ": " + found.do for part in parts), found


def test_no_speed_of_an_interface_that_is_not_here():
    assert list(check_link(Environment({"DMLC_INTERFACE": "nosuch0"}), TWO)) == []
    assert list(check_link(Environment({}), [])) == []
