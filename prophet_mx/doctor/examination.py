"""What ``prophet-mx doctor`` finds: all checks, one after the other."""

from typing import Callable, Iterator, List, Mapping, Optional, Tuple

from ..errors import ConfigError, not_allowed
from ..machine import MAX_PORT
from . import checks, cuda, network
from .checks import ERROR, OK, WARNING, Environment, Finding

CHECKS: Tuple[Callable[[Environment], Iterator[Finding]], ...] = (
    checks.check_python,
    checks.check_mxnet,
    cuda.check_cuda,
    checks.check_engine,
    checks.check_van,
    checks.check_mxnet_settings,
    checks.check_settings,
    checks.check_port_variable,
    checks.check_files,
    checks.check_cores,
    network.check_tcp_info,
    checks.check_job,
    network.check_nic,
    network.check_link,
    network.check_scheduler,
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
    if not host or not port.isdecimal() or not 1 <= int(port) <= MAX_PORT:
        raise ConfigError(not_allowed(repr(text), f"HOST:PORT with a port from 1 to {MAX_PORT}"))
    return host, int(port)
