"""What prophet-mx doctor finds for PyTorch: the package, torchrun's variables, the interfaces of gloo and NCCL, and rank 0's port."""

import socket

import psutil
import pytest

from prophet_mx.doctor import checks, examination, pytorch
from prophet_mx.doctor.checks import ERROR, MXNET, OK, PYTORCH, WARNING, Environment, check_cores, check_python, check_settings
from prophet_mx.doctor.examination import examine
from prophet_mx.launcher.launch import free_port
from support.doctor import JOB, only

TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "198.51.100.1",
    "MASTER_PORT": "29500",
}
WHEEL = {"torch": "2.13.0+cpu", "gloo": True, "nccl": "", "cuda": False, "gpus": 0}
TWO = [("eth0", "192.0.2.1"), ("ib0", "198.51.100.1")]


def alone(environ, **named):
    return Environment(environ, frameworks=(PYTORCH,), **named)


def findings(monkeypatch, probed):
    monkeypatch.setattr(pytorch, "find_spec", lambda name: name)
    monkeypatch.setattr(pytorch, "run_probe", lambda module, environ: probed)
    return {one.check: one for one in pytorch.check_pytorch(alone({}))}


@pytest.mark.parametrize(
    "change, check, status, parts",
    [
        ({}, "pytorch", OK, ["2.13.0+cpu"]),
        ({}, "gloo", OK, [""]),
        ({"torch": "2.0.1"}, "pytorch", ERROR, ["2.0.1", "pip install 'torch>=2.1'"]),
        ({"gloo": False}, "gloo", ERROR, ["without gloo", "pip install 'torch>=2.1'"]),
        ({"cuda": True}, "gpu", WARNING, ["sees no GPU", "CUDA_VISIBLE_DEVICES"]),
        ({"cuda": True, "gpus": 2}, "nccl", WARNING, ["without NCCL", "gloo"]),
        ({"cuda": True, "gpus": 2, "nccl": "2.27.5"}, "nccl", OK, ["2.27.5"]),
        ({"cuda": True, "gpus": 2, "nccl": "2.27.5"}, "gpu", OK, ["2 seen"]),
    ],
)
def test_the_package(monkeypatch, change, check, status, parts):
    found = findings(monkeypatch, {**WHEEL, **change})[check]
    assert found.status == status and all(part in f"{found.found}: {found.do}" for part in parts), found


def test_a_package_that_cannot_be_imported(monkeypatch):
    found = findings(monkeypatch, {"error": "ImportError: libcudart.so.12: cannot open shared object file"})
    assert list(found) == ["pytorch"] and found["pytorch"].status == ERROR and "libcudart.so.12" in found["pytorch"].found


@pytest.mark.parametrize(
    "change, status, part",
    [
        ({}, OK, "rank 1 of 4, 2 of them on this machine"),
        ({"RANK": "4"}, ERROR, "RANK=4"),
        ({"WORLD_SIZE": "many"}, ERROR, "WORLD_SIZE=many"),
        ({"MASTER_PORT": "0"}, ERROR, "MASTER_PORT=0"),
        ({"MASTER_ADDR": ""}, ERROR, "MASTER_ADDR not set"),
        ({"LOCAL_RANK": "2"}, ERROR, "LOCAL_RANK=2"),
        ({"RANK": "", "WORLD_SIZE": ""}, OK, "torchrun sets them"),
    ],
)
def test_the_variables_of_torchrun(change, status, part):
    found = only(pytorch.check_torchrun(alone({**TORCHRUN, **change})))
    assert found.status == status and part in found.found, found


@pytest.mark.parametrize(
    "environ, own, leads, status, parts",
    [
        ({}, "192.0.2.1", "192.0.2.1", OK, ["eth0 (192.0.2.1)", "host's own name"]),
        ({}, "127.0.1.1", "192.0.2.1", ERROR, ["127.0.1.1", "connectFullMesh", "GLOO_SOCKET_IFNAME=eth0"]),
        ({}, None, "198.51.100.1", ERROR, ["loopback", "GLOO_SOCKET_IFNAME=ib0"]),
        ({}, "192.0.2.1", "198.51.100.1", WARNING, ["eth0", "ib0 leads to MASTER_ADDR", "GLOO_SOCKET_IFNAME=ib0"]),
        ({"LOCAL_WORLD_SIZE": "4"}, "127.0.1.1", None, OK, ["127.0.1.1", "this machine"]),
        ({"MASTER_ADDR": "", "RANK": "", "WORLD_SIZE": ""}, "127.0.1.1", None, WARNING, ["127.0.1.1", "several hosts", "=eth0"]),
    ],
)
def test_the_interface_that_gloo_takes(monkeypatch, environ, own, leads, status, parts):
    monkeypatch.setattr(pytorch, "address_of_name", lambda: own)
    monkeypatch.setattr(pytorch, "address_towards", lambda host, port: leads)
    found = only(pytorch.check_gloo_nic(alone({**TORCHRUN, "MASTER_ADDR": "203.0.113.9", **environ}), TWO))
    assert found.status == status and all(part in f"{found.found}: {found.do}" for part in parts), found


def test_the_interface_that_is_named(monkeypatch):
    loopback = next(name for name, addresses in psutil.net_if_addrs().items() if any(a.address == "127.0.0.1" for a in addresses))
    here = {**TORCHRUN, "MASTER_ADDR": "127.0.0.1", "LOCAL_WORLD_SIZE": "4"}
    assert only(pytorch.check_gloo_nic(alone({**here, "GLOO_SOCKET_IFNAME": loopback}))).status == OK
    for name in ("nosuch0", f"{loopback},nosuch0"):
        found = only(pytorch.check_gloo_nic(alone({**here, "GLOO_SOCKET_IFNAME": name}), TWO))
        assert found.status == ERROR and "nosuch0" in found.found and "eth0 (192.0.2.1)" in found.do
    monkeypatch.setattr(pytorch, "address_towards", lambda host, port: "192.0.2.1")
    found = only(pytorch.check_gloo_nic(alone({**TORCHRUN, "MASTER_ADDR": "203.0.113.9", "GLOO_SOCKET_IFNAME": loopback}), TWO))
    assert found.status == ERROR and "loopback" in found.found and "GLOO_SOCKET_IFNAME=eth0" in found.do


@pytest.mark.parametrize(
    "value, status",
    [("eth", OK), ("=eth0,ib0", OK), ("^docker,lo", OK), ("en", ERROR), ("=eth", ERROR), ("^eth,ib", ERROR), ("ib0:4000", OK)],
)
def test_the_interface_that_nccl_is_told(value, status):
    found = only(pytorch.check_nccl_nic(alone({"NCCL_SOCKET_IFNAME": value}), TWO))
    assert found.status == status and f"NCCL_SOCKET_IFNAME={value}" in found.found, found


def test_the_port_of_rank_0():
    port = free_port()

    def found(**change):
        return only(pytorch.check_master(alone({**TORCHRUN, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **change})))

    assert found().status == OK and "free" in found().found
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        assert found().status == ERROR and "MASTER_PORT" in found().do
        taken.listen(1)
        assert "answers" in found().found
    lost = found(MASTER_ADDR="no-such-host.invalid")
    assert lost.status == ERROR and "MASTER_ADDR" in lost.do
    assert list(pytorch.check_master(alone({}))) == []


def test_settings_of_the_traffic_to_servers():
    found = only(check_settings(alone({"PROPHET_WINDOW": "4MB"})))
    assert found.status == ERROR and "PROPHET_WINDOW" in found.found and "PyTorch" in found.found
    assert only(check_settings(alone({"PROPHET_POLICY": "fifo"}))).status == ERROR
    assert only(check_settings(alone({"PROPHET_COMPRESS": "bf16"}))).status == OK
    assert only(check_settings(Environment({"PROPHET_WINDOW": "4MB"}, frameworks=(MXNET, PYTORCH)))).status == OK


def test_there_are_no_servers():
    found = only(check_cores(alone({"LOCAL_WORLD_SIZE": "4", "OMP_NUM_THREADS": "1"}), cores=2))
    assert found.status == WARNING and "4 worker(s):" in found.found and "server" not in found.found
    assert only(check_cores(alone({}), cores=2)).found == "2 core(s) for 1 worker(s)"


def test_any_python_from_3_8_on(monkeypatch):
    monkeypatch.setattr("sys.version_info", (3, 13, 1))
    assert only(check_python(alone({}))).status == OK
    assert only(check_python(Environment({}))).status == ERROR


OF_MXNET = {"mxnet", "engine", "van", "mxnet_settings", "PORT", "job", "nic", "scheduler", "tcp_info"}
OF_PYTORCH = {"pytorch", "gloo", "torchrun", "gloo_nic"}


@pytest.mark.parametrize(
    "installed, environ, there, absent",
    [
        ((PYTORCH,), {}, OF_PYTORCH, OF_MXNET),
        ((PYTORCH,), TORCHRUN, OF_PYTORCH, OF_MXNET),
        ((MXNET,), {}, OF_MXNET, OF_PYTORCH),
        ((MXNET, PYTORCH), {}, OF_MXNET | OF_PYTORCH, set()),
        ((MXNET, PYTORCH), JOB, OF_MXNET, OF_PYTORCH),
        ((PYTORCH,), JOB, OF_MXNET, OF_PYTORCH),
        ((MXNET,), {**TORCHRUN, "TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "127.0.0.1"}, {"pytorch", "torchrun"}, {"job"}),
    ],
)
def test_what_is_installed_is_checked_and_what_the_job_needs(monkeypatch, installed, environ, there, absent):
    for module in (examination, checks, pytorch):
        monkeypatch.setattr(module, "find_spec", lambda name: name if name in installed else None)
    for module, answer in ((checks, {"error": "not run"}), (pytorch, WHEEL)):
        monkeypatch.setattr(module, "run_probe", lambda module, environ, answer=answer: answer)
    monkeypatch.setattr(pytorch, "CONNECT_SECONDS", 0.05)
    names = {one.check for one in examine(environ)}
    assert there <= names and not absent & names, names
