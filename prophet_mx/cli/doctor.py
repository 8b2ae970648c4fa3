"""The command ``prophet-mx doctor``: looks at a machine, or at the environment of a job's process, before the job starts."""

import argparse
import json
import os

from ..doctor.checks import ERROR, OK, WARNING
from ..doctor.examination import address, examine
from .arguments import checked

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


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add ``doctor`` to the command ``prophet-mx``."""
    parser = subparsers.add_parser(
        "doctor",
        help="check a machine and a job's environment before it starts",
        description="Check this machine and this environment for what makes MXNet dist_sync jobs fail, hang or go unscheduled.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--scheduler",
        type=checked(address),
        metavar="HOST:PORT",
        help="the job's scheduler (default: DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT)",
    )
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
