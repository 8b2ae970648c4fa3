"""The command ``prophet-mx launch``."""

import argparse
import io
import os
import shlex
import sys
from typing import Dict, List, Sequence

from ..errors import LaunchError
from ..launcher.console import Console, terminal_size
from ..launcher.environment import LISTEN_VARIABLE
from ..launcher.hosts import parse_hosts
from ..launcher.launch import run_plans
from ..launcher.plans import GRACE, MAX_PROCESSES, Plan, plan_hosts, plan_job
from ..launcher.processes import label_of
from ..launcher.ssh import Ssh, parse_variables, shown
from .arguments import duration, port, whole

_EPILOG = """\
example, two workers and one server on this machine:
  prophet-mx launch -n 2 -s 1 -- python train.py --kv-store dist_sync

example, on the hosts of a file, with a script that does not know prophet_mx:
  prophet-mx launch --hostfile hosts --schedule -- python train.py

Every process runs COMMAND with the DMLC_* variables of its role; scheduler and
servers are what MXNet makes of it at 'import mxnet'. Each line of output comes
with its process in front, as in '[worker 0] ...'. That number is the launcher's
count: the job's scheduler gives out the ranks (kv.rank). OMP_NUM_THREADS, unless
set already, is set to a machine's cores divided by its workers. Servers get
MXNET_ENGINE_TYPE=NaiveEngine, unless it is set already: each message then takes
less of their time. PORT is removed, because ps-lite would make every process
listen on it.

host file: a host per line, '#' starts a comment
  gpu1         slots=2
  user@gpu2    slots=2   address=10.0.0.2
Workers go round the hosts until the slots are used, servers go round all hosts,
the scheduler is on the first. 'address' is the IP address at which the other
hosts reach the host, if its name does not give it. ssh must reach every host
without a password, and each needs the same COMMAND, folder and Python with
prophet_mx (--chdir, --python). DMLC_*, PROPHET_*, MXNET_*, PS_* and
BYTESCHEDULER_* variables are forwarded, others with --env. Values go through
ssh's connection, not over command lines. The processes on the hosts end when the
job ends, fails or is interrupted, and when the launcher or the connection dies.

exit codes:
  0        all workers ended with 0
  N        the first process that failed ended with N, or signal N - 128 killed it
  2        wrong argument, or COMMAND cannot be started
  75       a worker got no answer for PROPHET_STALL_ABORT seconds
  124      --timeout passed
  130      Ctrl-C; 143: SIGTERM; 129: SIGHUP
  255      also: ssh could not reach a host, or lost it
No process of the job is left running."""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add ``launch`` to the command ``prophet-mx``."""
    parser = subparsers.add_parser(
        "launch",
        help="run a dist_sync job, on this machine or on several over ssh",
        usage="prophet-mx launch [-n N] [-s N] [--hostfile FILE] [options] -- COMMAND ...",
        description="Start a scheduler, servers and workers of an MXNet dist_sync job, on this machine or on the hosts of a file, "
        "and wait for the end.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "-n",
        "--workers",
        type=whole(MAX_PROCESSES),
        metavar="N",
        help="number of workers (default: 2; with --hostfile the number of slots)",
    )
    add(
        "-s",
        "--servers",
        type=whole(MAX_PROCESSES),
        metavar="N",
        help="number of servers (default: 1; with --hostfile one for each host with a worker)",
    )
    add(
        "--schedule",
        action="store_true",
        help="wrap every dist_sync store that COMMAND's Python makes in a ScheduledKVStore: no line of the script changes",
    )
    add("--timeout", type=duration, metavar="SECONDS", help="end the job after this time (default: never)")
    add(
        "--grace",
        type=duration,
        default=GRACE,
        metavar="SECONDS",
        help=f"time to end between SIGTERM and SIGKILL, and for scheduler and servers after the last worker (default: {GRACE:g})",
    )
    add(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="a variable for all processes; without a value, the one it has here (may be repeated)",
    )
    add("--port", type=port, metavar="N", help="the scheduler's port (default: one that is free on this machine)")
    add("--dry-run", action="store_true", help="print the commands and start nothing")
    add("--hostfile", metavar="FILE", help="run the job on the hosts of this file, over ssh")
    add(
        "--ssh-option",
        action="append",
        default=[],
        metavar="OPTION",
        help="an option of ssh, as after its -o: Port=2222, User=train, IdentityFile=key (may be repeated)",
    )
    add("--chdir", metavar="FOLDER", help="the folder on the hosts to run in (default: this one)")
    add("--python", metavar="PATH", help="the Python on the hosts that has prophet_mx (default: the path of this one)")
    add("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="the training command and its arguments")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    plans = _plans(arguments)
    if arguments.dry_run:
        for line in _commands(plans):
            print(line)
        return 0
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    console = Console(sys.stdout)
    if arguments.hostfile:
        for line in _where(plans):
            console("launch", line, True)
    return run_plans(plans, timeout=arguments.timeout, grace=arguments.grace, sink=console, capture=False, signals=True).exit_code


def _plans(arguments: argparse.Namespace) -> List[Plan]:
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise LaunchError("no command given; allowed: a program and its arguments after '--', as in '-- python train.py'")
    env = {**_terminal(arguments.workers or 2), **parse_variables(arguments.env, os.environ)}
    if arguments.hostfile is None:
        for name in ("ssh_option", "chdir", "python"):
            if getattr(arguments, name):
                raise LaunchError(f"--{name.replace('_', '-')} is for jobs on several hosts; give their names with --hostfile FILE")
        return plan_job(command, arguments.workers or 2, arguments.servers or 1, env=env, schedule=arguments.schedule, port=arguments.port)
    try:
        with open(arguments.hostfile, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not a text"
        raise LaunchError(
            f"--hostfile {arguments.hostfile} cannot be read ({why}); give a file with a line such as 'gpu1 slots=2' for each host"
        ) from None
    ssh = Ssh(tuple(arguments.ssh_option), arguments.python or sys.executable, arguments.chdir or os.getcwd())
    return plan_hosts(
        command,
        parse_hosts(text, arguments.hostfile),
        ssh,
        arguments.workers,
        arguments.servers,
        env=env,
        grace=arguments.grace,
        schedule=arguments.schedule,
        port=arguments.port,
    )


def _terminal(workers: int) -> Dict[str, str]:
    """The size for progress bars, which cannot ask a pipe: what is left beside the longest label."""
    if not sys.stdout.isatty():
        return {}
    columns, lines = terminal_size()
    return {"COLUMNS": str(max(columns - len(f"[{label_of('worker', workers - 1)}] "), 1)), "LINES": str(lines)}


def _commands(plans: Sequence[Plan]) -> List[str]:
    """For a shell: a comment and a command for each process."""
    lines = []
    for plan in plans:
        lines.append(f"# {plan.label}" + (f" on {plan.host.name}" if plan.host else ""))
        if plan.spec is not None:
            lines.append(shown(plan.command, plan.spec))
        else:
            words = ["env", "-u", LISTEN_VARIABLE, *(f"{name}={value}" for name, value in sorted(plan.env.items())), *plan.command]
            lines.append(" ".join(map(shlex.quote, words)))
    return lines


def _where(plans: Sequence[Plan]) -> List[str]:
    """A line for each host: what runs there."""
    hosts: Dict[str, List[str]] = {}
    for plan in plans:
        if plan.host is not None:
            hosts.setdefault(plan.host.name, []).append(plan.label)
    return [f"{name}: {', '.join(labels)}" for name, labels in hosts.items()]
