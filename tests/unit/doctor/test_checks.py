"""What prophet-mx doctor finds of a machine and an environment."""

import os
import resource
import sys

import pytest

from prophet_mx.doctor.checks import (
    ERROR,
    OK,
    WARNING,
    Environment,
    check_cores,
    check_engine_threads,
    check_files,
    check_job,
    check_settings,
    check_van,
)
from prophet_mx.machine import usable_cores
from support.doctor import JOB, only


@pytest.mark.parametrize(
    "change, status, part",
    [
        ({}, OK, "worker of a job with 2 worker(s)"),
        ({"DMLC_NUM_SERVER": "0"}, ERROR, "DMLC_NUM_SERVER=0"),
        ({"DMLC_ROLE": "boss"}, ERROR, "boss"),
        ({"DMLC_PS_ROOT_URI": ""}, ERROR, "DMLC_PS_ROOT_URI not set"),
    ],
)
def test_the_variables_of_a_job(change, status, part):
    found = only(check_job(Environment({**JOB, **change})))
    assert found.status == status and part in found.found


@pytest.mark.parametrize(
    "van, status, part",
    [("", OK, "without RDMA"), ("zmq", OK, "TCP"), ("p3", ERROR, "prophet_mx would schedule nothing"), ("ibverbs", WARNING, "no RDMA")],
)
def test_transports(van, status, part):
    found = only(check_van(Environment({**JOB, "DMLC_PS_VAN_TYPE": van})))
    assert found.status == status and part in found.found


def test_an_endpoint_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)  # as if it were not installed
    found = only(check_settings(Environment({"PROPHET_METRICS_PORT": "9400"})))
    assert found.status == ERROR and "prometheus_client>=0.14" in found.do


def test_the_limit_of_open_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
        assert only(check_files(Environment(JOB))).status == OK
        found = only(check_files(Environment({**JOB, "DMLC_NUM_WORKER": "64"})))
        assert found.status == ERROR and found.do.startswith("ulimit -n")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


ALONE = {**JOB, "OMP_NUM_THREADS": "1"}  # a job on this machine alone: two workers, one server
AMONG = {**ALONE, "DMLC_PS_ROOT_URI": "10.0.0.1"}


@pytest.mark.parametrize(
    "job, cores, expected",
    [
        (Environment(ALONE), 3, [(OK, "cores", "3 core(s) for 2 worker(s) and 1 server(s)")]),
        (Environment(ALONE), 2, [(WARNING, "cores", "2 core(s) for 2 worker(s) and 1 server(s): the processes would wait")]),
        (Environment(AMONG), 2, [(OK, "cores", "2 core(s) for 1 worker(s) and 1 server(s)")]),
        (Environment({}), 2, [(OK, "cores", "2 core(s) for 1 worker(s) and 1 server(s)")]),
        (Environment({}, workers=4, servers=0), 4, [(OK, "cores", "4 core(s) for 4 worker(s) and 0 server(s)")]),
        (Environment({}, workers=4, servers=1), 4, [(WARNING, "cores", "the processes would wait")]),
        (Environment({**ALONE, "OMP_NUM_THREADS": "4"}), 8, [(OK, "cores", "")]),
        (Environment({**ALONE, "OMP_NUM_THREADS": "8"}), 8, [(OK, "cores", ""), (WARNING, "threads", "OMP_NUM_THREADS=8: 2 worker(s)")]),
        (Environment(JOB), 8, [(OK, "cores", ""), (WARNING, "threads", "each of 2 workers starts 8 threads on 8 cores")]),
        (Environment({}, workers=2), 8, [(OK, "cores", "")]),
    ],
)
def test_cores_for_the_processes_of_this_machine(job, cores, expected):
    found = list(check_cores(job, cores))
    assert [(one.status, one.check) for one in found] == [(status, check) for status, check, _ in expected]
    assert all(part in one.found for one, (_, _, part) in zip(found, expected)), found
    assert all("OMP_NUM_THREADS=4" in one.do for one in found if one.check == "threads")


@pytest.mark.parametrize(
    "change, expected",
    [
        ({}, [WARNING]),
        ({"MXNET_CPU_WORKER_NTHREADS": "1"}, [WARNING]),
        ({"MXNET_CPU_WORKER_NTHREADS": "2"}, [OK]),
        ({"DMLC_ROLE": "server"}, []),
    ],
)
def test_on_a_machine_without_a_gpu_a_worker_is_told_of_the_threads_that_run_operators_and_messages(change, expected):
    assert [one.status for one in check_engine_threads(Environment({**JOB, **change}))] == expected


@pytest.mark.parametrize(
    "text, cores", [("max 100000", 6), ("250000 100000", 3), ("10000 100000", 1), ("900000 100000", 6), ("?", 6), (None, 6)]
)
def test_cores_that_a_container_may_use(text, cores, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)))
    if text is not None:
        (tmp_path / "cpu.max").write_text(text + "\n")
    assert usable_cores(tmp_path) == cores
