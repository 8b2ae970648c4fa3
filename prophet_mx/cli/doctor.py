"""The command ``prophet-mx doctor``: looks at a machine, or at the environment of a job's process, before the job starts."""
import argparse
import json
import os
from typing import Callable, Iterator, List, Mapping, Optional, Tuple

from ..doctor.checks import (ERROR, OK, WARNING, Finding, Job, check_engine, check_files, check_job, check_mxnet, check_mxnet_settings,
                             check_port_variable, check_python, check_settings, check_van)
from ..doctor.network import check_nic, check_scheduler, check_tcp_info

CHECKS: Tuple[Callable[[Job], Iterator[Finding]], ...] = (
    check_python, check_mxnet, check_engine, check_van, check_mxnet_settings, check_settings, check_port_variable, check_files,
    check_tcp_info, check_job, check_nic, check_scheduler)

_EPILOG = """\
example, on a machine that will run workers:
  prophet-mx doctor --scheduler 10.0.0.1:9091

One line per check: ok, warning or error, what was found, and what to do. Run it with the
environment that the job's processes will have, on each machine: DMLC_*, MXNET_*, PROPHET_*.
An error means that the job would fail, hang, or not be scheduled at all; a warning that it
runs slower or less safely than it could.

exit codes:
  0  no errors; there may be warnings
  1  an error, or with --strict a warning
  2  wrong argument"""


def examine(environ: Mapping[str, str], scheduler: Optional[Tuple[str, int]] = None) -> List[Finding]:
    """All checks. ``scheduler`` is its host and port; None for DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT of ``environ``."""
    if scheduler is None and environ.get("DMLC_PS_ROOT_URI"):
        try:
            scheduler = _address(f"{environ['DMLC_PS_ROOT_URI']}:{environ.get('DMLC_PS_ROOT_PORT', '')}")
        except argparse.ArgumentTypeError as error:
            return [*examine({**environ, "DMLC_PS_ROOT_URI": ""}),
                    Finding("scheduler", ERROR, f"DMLC_PS_ROOT_URI:DMLC_PS_ROOT_PORT={error}", "set both for every process")]
    job = Job(environ, scheduler)
    return [finding for check in CHECKS for finding in check(job)]


def _address(text: str) -> Tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: HOST:PORT with a port from 1 to 65535")
    return host, int(port)


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add ``doctor`` to the command ``prophet-mx``."""
    parser = subparsers.add_parser(
        "doctor", help="check a machine and a job's environment before it starts",
        description="Check this machine and this environment for what makes MXNet dist_sync jobs fail, hang or go unscheduled.",
        epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scheduler", type=_address, metavar="HOST:PORT",
                        help="the job's scheduler (default: DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT)")
    parser.add_argument("--strict", action="store_true", help="warnings count as errors")
    parser.add_argument("--json", action="store_true", help="print the findings as a JSON list")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    findings = examine(os.environ, arguments.scheduler)
    if arguments.json:
        print(json.dumps([finding._asdict() for finding in findings], indent=1))
    else:
        width = max(len(finding.check) for finding in findings)
        for finding in findings:
            print(f"{finding.status:8} {finding.check:{width}}  {finding.found}" + (f": {finding.do}" if finding.do else ""))
        counts = {status: sum(finding.status == status for finding in findings) for status in (OK, WARNING, ERROR)}
        print(", ".join(f"{number} {status}" for status, number in counts.items()))
    bad = (ERROR, WARNING) if arguments.strict else (ERROR,)
    return int(any(finding.status in bad for finding in findings))
