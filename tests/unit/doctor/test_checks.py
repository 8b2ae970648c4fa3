"""What prophet-mx doctor finds of a machine and an environment."""

import resource
import sys

import pytest

from prophet_mx.doctor.checks import ERROR, OK, Job, check_files, check_job, check_settings
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
    found = only(check_job(Job({**JOB, **change})))
    assert found.status == status and part in found.found


def test_an_endpoint_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)  # as if it were not installed
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
