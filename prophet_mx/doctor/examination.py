"""What ``prophet-mx doctor`` finds: all checks, one after the other."""

from importlib.util import find_spec
from typing import Callable, Iterator, List, Mapping, Optional, Tuple

from ..errors import ConfigError, not_allowed
from ..machine import MAX_PORT
from . import checks, cuda, network, pytorch
from .checks import ERROR, MXNET, OK, PYTORCH, WARNING, Environment, Finding

Check = Callable[[Environment], Iterator[Finding]]


def _with(framework: str, check: Check) -> Check:
    """This check, where the job may use this framework."""
    return lambda job: check(job) if framework in job.frameworks else iter(())


CHECKS: Tuple[Check, ...] = (
    checks.check_python,
    _with(MXNET, checks.check_mxnet),
    _with(PYTORCH, pytorch.check_pytorch),
    checks.check_core,
    _with(MXNET, cuda.check_cuda),
    _with(MXNET, checks.check_engine),
    _with(MXNET, checks.check_van),
    _with(MXNET, checks.check_mxnet_settings),
    checks.check_settings,
    _with(MXNET, checks.check_port_variable),
    checks.check_files,
    checks.check_cores,
    _with(MXNET, network.check_tcp_info),
    _with(MXNET, checks.check_job),
    _with(MXNET, network.check_nic),
    _with(MXNET, network.check_link),
    _with(MXNET, network.check_scheduler),
    _with(PYTORCH, pytorch.check_torchrun),
    _with(PYTORCH, pytorch.check_gloo_nic),
    _with(PYTORCH, pytorch.check_gloo_link),
    _with(PYTORCH, pytorch.check_nccl_nic),
    _with(PYTORCH, pytorch.check_master),
)


def installed() -> Tuple[str, ...]:
    """The frameworks that are installed."""
    return tuple(name for name in (MXNET, PYTORCH) if find_spec(name) is not None)


def frameworks_of(environ: Mapping[str, str], scheduler: bool) -> Tuple[str, ...]:
    """Those that a job in this environment may use: that of its launcher, or those that are installed, or any if none is."""
    if scheduler or environ.get("DMLC_ROLE"):
        return (MXNET,)
    return (PYTORCH,) if environ.get("TORCHELASTIC_RUN_ID") else installed() or (MXNET, PYTORCH)


def examine(
    environ: Mapping[str, str], scheduler: Optional[Tuple[str, int]] = None, workers: Optional[int] = None, servers: Optional[int] = None
) -> List[Finding]:
    """What all checks find: errors first, then warnings, then what is fine.

    ``scheduler`` is its host and port; None for DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT of ``environ``. ``workers`` and ``servers`` are how
    many of them run on this machine; None for what ``environ`` says of them.
    """
    wrong = []
    frameworks = frameworks_of(environ, scheduler is not None)
    if scheduler is None and environ.get("DMLC_PS_ROOT_URI"):
        try:
            scheduler = address(f"{environ['DMLC_PS_ROOT_URI']}:{environ.get('DMLC_PS_ROOT_PORT', '')}")
        except ConfigError as error:
            environ = {**environ, "DMLC_PS_ROOT_URI": ""}
            wrong = [Finding("scheduler", ERROR, f"DMLC_PS_ROOT_URI:DMLC_PS_ROOT_PORT={error}", "set both for every process")]
    job = Environment(environ, scheduler, workers, servers, frameworks)
    findings = [finding for check in CHECKS for finding in check(job)]
    return sorted(findings + wrong, key=lambda finding: (ERROR, WARNING, OK).index(finding.status))


def address(text: str) -> Tuple[str, int]:
    """``HOST:PORT`` as both; ConfigError if it is none."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port) <= MAX_PORT:
        raise ConfigError(not_allowed(repr(text), f"HOST:PORT with a port from 1 to {MAX_PORT}"))
    return host, int(port)
