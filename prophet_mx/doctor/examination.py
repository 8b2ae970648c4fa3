"""What ``prophet-mx doctor`` finds: all checks, one after the other."""

from typing import Callable, Iterator, List, Mapping, Optional, Tuple

from ..errors import ConfigError, not_allowed
from ..machine import MAX_PORT
from .checks import (
    ERROR,
    OK,
    WARNING,
    Environment,
    Finding,
    check_cores,
    check_engine,
    check_files,
    check_job,
    check_mxnet,
    check_mxnet_settings,
    check_port_variable,
    check_python,
    check_settings,
    check_van,
)
from .cuda import check_cuda
from .network import check_link, check_nic, check_scheduler, check_tcp_info

CHECKS: Tuple[Callable[[Environment], Iterator[Finding]], ...] = (
    check_python,
    check_mxnet,
    check_cuda,
    check_engine,
    check_van,
    check_mxnet_settings,
    check_settings,
    check_port_variable,
    check_files,
    check_cores,
    check_tcp_info,
    check_job,
    check_nic,
    check_link,
    check_scheduler,
)


def examine(
    environ: Mapping[str, str], scheduler: Optional[Tuple[str, int]] = None, workers: Optional[int] = None, servers: Optional[int] = None
) -> List[Finding]:
    """What all checks find: errors first, then warnings, then what is fine.

    ``scheduler`` is its host and port; None for DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT of ``environ``. ``workers`` and ``servers`` are how
    many of them run on this machine; None for what ``environ`` says of them.
    """
    wrong = []
    if scheduler is None and environ.get("DMLC_PS_ROOT_URI"):
        try:
            scheduler = address(f"{environ['DMLC_PS_ROOT_URI']}:{environ.get('DMLC_PS_ROOT_PORT', '')}")
        except ConfigError as error:
            environ = {**environ, "DMLC_PS_ROOT_URI": ""}
            wrong = [Finding("scheduler", ERROR, f"DMLC_PS_ROOT_URI:DMLC_PS_ROOT_PORT={error}", "set both for every process")]
    job = Environment(environ, scheduler, workers, servers)
    findings = [finding for check in CHECKS for finding in check(job)]
    return sorted(findings + wrong, key=lambda finding: (ERROR, WARNING, OK).index(finding.status))


def address(text: str) -> Tuple[str, int]:
    """``HOST:PORT`` as both; ConfigError if it is none."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 1 <= int(port) <= MAX_PORT:
        raise ConfigError(not_allowed(repr(text), f"HOST:PORT with a port from 1 to {MAX_PORT}"))
    return host, int(port)
