"""What the tests of prophet-mx doctor share."""

from typing import Iterable

from prophet_mx.doctor.checks import Finding

JOB = {"DMLC_ROLE": "worker", "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": "9091", "DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "1"}


def only(findings: Iterable[Finding]) -> Finding:
    """The one finding that there is."""
    [one] = findings
    return one
