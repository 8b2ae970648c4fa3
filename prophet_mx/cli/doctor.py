"""The command ``prophet-mx doctor``: looks at a machine, or at the environment of a job's process, before the job starts."""

import argparse
import json
import os

from ..doctor.checks import ERROR, OK, WARNING
from ..doctor.examination import address, examine
from ..launcher.plans import MAX_PROCESSES
from .arguments import checked, whole

HELP = "check a machine and a job's environment before it starts"
DESCRIPTION = (
    "Check this machine and environment for causes that make a job of MXNet's dist_sync or of PyTorch fail, hang or run unscheduled."
)
EPILOG = """\
examples, on a machine that will run workers of MXNet, and in the processes of a PyTorch job:
  prophet-mx doctor --scheduler 10.0.0.1:9091 --workers 4 --servers 1
  torchrun --nproc-per-node 4 --no-python prophet-mx doctor

What is installed is checked: MXNet, PyTorch, or both. In the environment of a job it is what
the job needs: MXNet with DMLC_ROLE or --scheduler, PyTorch with torchrun's variables.

Each check prints a line: error, warning or ok, the finding, and what to do about it. Errors
come first, then warnings, then checks without a problem. Run the command on each machine, in
the environment of the job's processes: DMLC_*, MXNET_*, PROPHET_*, LD_LIBRARY_PATH; for
PyTorch GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME, and what torchrun sets.
After an error the job would fail, hang, or not be scheduled at all. After a warning it would
run, but slower or less safely than it could.

exit codes:
  0  no errors; there may be warnings
  1  an error, or with --strict a warning
  2  wrong argument"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "--scheduler",
        type=checked(address),
        metavar="HOST:PORT",
        help="the scheduler of an MXNet job (default: DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT)",
    )
    everything = "all of a job on 127.0.0.1, else 1"
    for letter, role, default in (
        ("-n", "workers", f"LOCAL_WORLD_SIZE, {everything}"),
        ("-s", "servers", f"{everything}; PyTorch has none"),
    ):
        parser.add_argument(
            letter,
            f"--{role}",
            type=whole(MAX_PROCESSES, low=0),
            metavar="N",
            help=f"number of {role} on this machine (default: {default})",
        )
    parser.add_argument("--strict", action="store_true", help="treat warnings as errors")
    parser.add_argument("--json", action="store_true", help="print the findings as a JSON list")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; its exit code."""
    findings = examine(os.environ, arguments.scheduler, arguments.workers, arguments.servers)
    if arguments.json:
        print(json.dumps([finding._asdict() for finding in findings], indent=1))
    else:
        width = max(len(finding.check) for finding in findings)
        for finding in findings:
            print(f"{finding.status:8} {finding.check:{width}}  {finding.found}" + (f": {finding.do}" if finding.do else ""))
        errors, warnings, fine = (sum(finding.status == status for finding in findings) for status in (ERROR, WARNING, OK))
        print(f"{errors} error{'s' * (errors != 1)}, {warnings} warning{'s' * (warnings != 1)}, {fine} ok")
    bad = (ERROR, WARNING) if arguments.strict else (ERROR,)
    return int(any(finding.status in bad for finding in findings))
