"""``launch`` and ``compare``: the options that both have about a job and its hosts, and the plan of one start of it."""

import argparse
import os
import shutil
import sys
from functools import partial
from typing import Callable, Dict, List, Mapping, Optional, Sequence

from ..config import PREFIX, Config, check_for_mxnet
from ..errors import LaunchError, not_allowed
from ..launcher.console import terminal_size
from ..launcher.hosts import Host, parse_host_list, parse_hosts
from ..launcher.plans import GRACE, MAX_PROCESSES, PlannedProcess, plan_hosts, plan_job
from ..launcher.processes import label_of
from ..launcher.ssh import Ssh, name_of, parse_variables
from ..user_files import read_text
from .arguments import checked, duration, port, whole

MAX_GPUS = 64


def add_job_options(parser: argparse.ArgumentParser) -> None:
    """Add what both commands have, the job's own command last."""
    parser.usage = "%(prog)s [-n N] [-s N] [-H HOST,... | --hostfile FILE] [options] -- COMMAND ..."
    add = parser.add_argument
    add(
        "-n",
        "--workers",
        type=whole(MAX_PROCESSES),
        metavar="N",
        help="number of workers (default: 2; with -H or --hostfile the number of slots)",
    )
    add(
        "-s",
        "--servers",
        type=whole(MAX_PROCESSES),
        metavar="N",
        help="number of servers (default: 1; with -H or --hostfile one for each host with a worker)",
    )
    add(
        "--schedule",
        action="store_true",
        help="wrap every dist_sync store that COMMAND creates in a ScheduledKVStore, without a change to the script",
    )
    add("--gpus-per-worker", type=whole(MAX_GPUS), metavar="N", help="give each worker N GPUs of its host for itself")
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
        help="set a variable for all processes; without a value, to its value here (may be repeated)",
    )
    add("--port", type=port, metavar="N", help="the scheduler's port (default: one that is free on this machine)")
    add(
        "-H",
        "--hosts",
        type=checked(parse_host_list),
        metavar="HOST[:N],...",
        help="run the job on these hosts over ssh, with up to N workers on each (default: 1)",
    )
    add("--hostfile", metavar="FILE", help="run the job on the hosts in this file over ssh")
    add(
        "--ssh-option",
        action="append",
        default=[],
        metavar="OPTION",
        help="an option for 'ssh -o', such as Port=2222, User=train or IdentityFile=key (may be repeated)",
    )
    add("--chdir", metavar="FOLDER", help="the folder on the hosts to run COMMAND in (default: the current folder)")
    add("--python", metavar="PATH", help="the Python with prophet_mx on the hosts (default: the path of this Python)")
    add("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="the training command and its arguments")


def command_of(words: Sequence[str]) -> List[str]:
    """The job's own command, of the words that argparse has left."""
    return list(words[1:] if words[:1] == ["--"] else words)


def planner(arguments: argparse.Namespace, settings: Optional[Mapping[str, str]] = None) -> Callable[[], List[PlannedProcess]]:
    """What plans one start of the job that the options name; with variables ``settings`` that the user cannot set.

    Raises LaunchError if an argument is wrong, and ConfigError if a setting is; what the plan finds wrong is raised by the first call
    of what is returned.
    """
    command = command_of(arguments.command)
    if not command:
        raise LaunchError("no command given; allowed: a program and its arguments after '--', as in '-- python train.py'")
    named = {**parse_variables(arguments.env, os.environ), **(settings or {})}
    here = arguments.hosts is None and arguments.hostfile is None
    check_settings({**os.environ, **named}, here)
    env = {**_terminal(arguments.workers or 2), **named}
    more = {"env": env, "schedule": arguments.schedule, "gpus_per_worker": arguments.gpus_per_worker, "port": arguments.port}
    if here:
        for name in ("ssh_option", "chdir", "python"):
            value = getattr(arguments, name)
            if value:
                option = f"--{name.replace('_', '-')} {value if isinstance(value, str) else value[0]}"
                raise LaunchError(not_allowed(option, "with -H HOST,HOST or --hostfile FILE", " for a job on this machine"))
        return partial(plan_job, command, arguments.workers or 2, arguments.servers or 1, **more)
    if arguments.hosts is not None and arguments.hostfile is not None:
        raise LaunchError(f"-H and --hostfile {arguments.hostfile} both name hosts; allowed: one of them")
    hosts = arguments.hosts or _hosts_of(arguments.hostfile)
    ssh = Ssh(tuple(arguments.ssh_option), arguments.python or sys.executable, arguments.chdir or os.getcwd())

    def plan() -> List[PlannedProcess]:
        plans = plan_hosts(command, hosts, ssh, arguments.workers, arguments.servers, grace=arguments.grace, **more)
        name_of(hosts[0], ssh.options)  # ssh has not been asked yet whether it takes the options, if the addresses are known
        return plans

    return plan


def pytorch_planner(arguments: argparse.Namespace, settings: Mapping[str, str]) -> Callable[[], List[PlannedProcess]]:
    """As :func:`planner`, for a command that starts the ranks of a PyTorch job itself: one process."""
    command = command_of(arguments.command)
    if not command or shutil.which(command[0]) is None:
        raise LaunchError(not_allowed(f"the command {' '.join(command[:1])!r}", "a program after '--', as in '-- torchrun train.py'"))
    for name in ("workers", "servers", "schedule", "gpus_per_worker", "port", "hosts", "hostfile", "ssh_option", "chdir", "python"):
        if getattr(arguments, name):
            raise LaunchError(not_allowed(f"--{name.replace('_', '-')}", "the options of the job's own launcher", " for a PyTorch job"))
    env = {PREFIX + "FALLBACK": "off", **parse_variables(arguments.env, os.environ), **settings}
    Config.from_env({**os.environ, **env})
    return lambda: [PlannedProcess("worker", 0, command, env)]


def check_settings(environ: Mapping[str, str], here: bool) -> None:
    """The settings of a job with these variables, so that one that its stores will refuse is an error before anything is started. Whether
    the folders of files exist is asked only if the job runs ``here``.

    Raises ConfigError.
    """
    elsewhere = () if here else (PREFIX + "PROFILE", PREFIX + "TIMELINE")
    check_for_mxnet(Config.from_env({name: value for name, value in environ.items() if name not in elsewhere}), variables=True)


def _hosts_of(path: str) -> List[Host]:
    """The hosts of a host file."""
    try:
        text = read_text(path, pipes=True)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not a text file"
        raise LaunchError(
            f"--hostfile {path} cannot be read ({why}); give a file with a line such as 'gpu1 slots=2' for each host"
        ) from None
    return parse_hosts(text, path)


def _terminal(workers: int) -> Dict[str, str]:
    """The size for progress bars, which cannot ask a pipe: what is left beside the longest label."""
    if not sys.stdout.isatty():
        return {}
    columns, lines = terminal_size()
    return {"COLUMNS": str(max(columns - len(f"[{label_of('worker', workers - 1)}] "), 1)), "LINES": str(lines)}
