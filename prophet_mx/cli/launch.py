"""The command ``prophet-mx launch``."""

import argparse
import os
import shlex
import sys
from collections import Counter
from contextlib import ExitStack
from typing import Dict, List, Mapping, Sequence

from ..launcher.console import LAUNCHER, Console, LogFolder, Sink
from ..launcher.hint import torch_hint
from ..launcher.launch import run_plans
from ..launcher.outlet import Outlet
from ..launcher.plans import PlannedProcess
from ..launcher.ssh import FORWARDED, parse_variables, shown
from ..place import LISTEN_VARIABLE
from .arguments import whole
from .job import add_job_options, command_of, planner

MAX_RESTARTS = 1000

HELP = "run a dist_sync job, on this machine or on several over ssh"
DESCRIPTION = "Start a scheduler, servers and workers of an MXNet dist_sync job, on this machine or on other hosts, and wait for the end."
EPILOG = """\
example, two workers and one server on this machine:
  prophet-mx launch -n 2 -s 1 -- python train.py --kv-store dist_sync

example, four workers on each of two hosts, over ssh, each with a GPU of its own:
  prophet-mx launch -H gpu1:4,gpu2:4 --gpus-per-worker 1 -- python train.py --kv-store dist_sync --gpus 0

example, on the hosts of a file, with a script that does not use prophet_mx:
  prophet-mx launch --hostfile hosts --schedule -- python train.py

Every process runs COMMAND with the DMLC_* variables of its role. At 'import mxnet'
MXNet turns it into the scheduler, a server or a worker. Each line of output begins
with the name of its process, as in '[worker 0] ...'. This number is the worker's rank
(kv.rank), if COMMAND imports ScheduledKVStore before it makes its store.
Unless they are already set, OMP_NUM_THREADS is set to a machine's cores divided by
its workers, and MXNET_ENGINE_TYPE to NaiveEngine on servers, where each message then
takes less time. PORT is removed, because ps-lite would make every process listen on
it. Folders of NVIDIA's pip packages are appended to LD_LIBRARY_PATH, if COMMAND's
Python has these packages.

host file: one host per line; '#' starts a comment
  gpu1         slots=2
  user@gpu2    slots=2   address=10.0.0.2
-H gpu1:2,user@gpu2:2 means the same, without the address. Without ':2' a host has one slot.
'address' is the IP address at which the other hosts reach the host, if its name does not
resolve to it.

over ssh:
- ssh must reach every host without a password. Every host needs the same COMMAND, folder
  and Python with prophet_mx (--chdir, --python).
- On a host, 'python' is the first one on its own PATH, whatever is activated here.
  '-- $(which python) train.py' names the one of here.
- Workers are placed on the hosts in turn until the slots are used, servers on all hosts
  in turn, and the scheduler on the first host.
- DMLC_*, PROPHET_*, MXNET_*, PS_* and BYTESCHEDULER_* variables are forwarded; name others
  with --env. Values travel through ssh's connection, not on command lines.
- The processes on the hosts end when the job ends, fails or is interrupted, and when the
  launcher or the connection dies.

With --restarts, the job starts again from the beginning of COMMAND if it ended with 75,
or if it lost a process because a signal killed it or its ssh connection failed. Each
restart uses another port unless --port names one. COMMAND must find its own newest
checkpoint; the scripts of the examples do so with --load-epoch auto. --timeout covers
all starts together.

--gpus-per-worker N sets CUDA_VISIBLE_DEVICES for the workers of each host: the first
worker sees GPUs 0 to N-1, the second the next N, and each counts its own GPUs from 0. If
the variable is already set (for hosts: with --env), the workers share the GPUs in its list.

Settings (PROPHET_*) are checked before anything starts.

exit codes:
  0        all workers ended with 0
  N        the first process that failed ended with N, or signal N - 128 killed it
  2        wrong argument, or COMMAND cannot be started
  75       a worker got no answer for PROPHET_STALL_ABORT seconds
  124      --timeout passed
  129      SIGHUP; 130: Ctrl-C; 143: SIGTERM
  255      ssh could not reach a host or lost it, or a process ended with 255
In all cases no process of the job is left running."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    add(
        "--restarts",
        type=whole(MAX_RESTARTS, low=0),
        default=0,
        metavar="N",
        help="start the job again, up to N times, if it ended with 75 or lost a process (default: 0)",
    )
    add("--log-dir", metavar="FOLDER", help="also write the output of each process to a file in this folder, such as worker-0.log")
    add("--dry-run", action="store_true", help="print the commands, without values of --env, and start nothing")
    add_job_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; its exit code."""
    plan = planner(arguments)
    plans = plan()
    if arguments.dry_run:
        for line in _commands(plans, _secrets(arguments.env)):
            print(line)
        return 0
    with ExitStack() as stack:
        output = stack.enter_context(Outlet(sys.stdout))
        sinks: List[Sink] = [Console(output)]

        def sink(label: str, text: str, final: bool) -> None:
            for one in sinks:
                one(label, text, final)

        if arguments.log_dir is not None:
            sinks.append(stack.enter_context(LogFolder(arguments.log_dir, [one.label for one in plans], sinks[0])))
        hint = torch_hint(command_of(arguments.command), sum(plan.role == "worker" for plan in plans))
        for line in _where(plans) + [hint] * bool(hint):
            sink(LAUNCHER, line, True)
        again = [plan] * arguments.restarts
        limits = {"timeout": arguments.timeout, "grace": arguments.grace}
        result = run_plans(plans, again=again, **limits, sink=sink, capture=False, signals=True, output=output)
    return result.exit_code


def _secrets(arguments: Sequence[str]) -> Dict[str, str]:
    """The variables of ``--env`` whose values are not printed: all but those that only MXNet and prophet_mx read."""
    return {name: value for name, value in parse_variables(arguments, os.environ).items() if not name.startswith(FORWARDED)}


def _commands(plans: Sequence[PlannedProcess], hidden: Mapping[str, str]) -> List[str]:
    """For a shell: a comment and a command for each process. The ``hidden`` variables are those of the shell, or have no value where that
    is not possible."""
    lines = []
    for plan in plans:
        lines.append(f"# {plan.label}" + (f" on {plan.host.name}" if plan.host else ""))
        if plan.spec is not None:
            lines.append(shown(plan.command, plan.spec, hidden))
        else:
            words = [
                f'{name}="${name}"' if hidden.get(name) == value else shlex.quote(f"{name}={value}")
                for name, value in sorted(plan.env.items())
            ]
            lines.append(" ".join(["env", "-u", LISTEN_VARIABLE, *words, *map(shlex.quote, plan.command)]))
    return lines


def _where(plans: Sequence[PlannedProcess]) -> List[str]:
    """A line for each host: what runs there. And one if workers of a host share its link, for which fewer of them would do."""
    hosts: Dict[str, List[str]] = {}
    for plan in plans:
        if plan.host is not None:
            hosts.setdefault(plan.host.name, []).append(plan.label)
    lines = [f"{name}: {', '.join(labels)}" for name, labels in hosts.items()]
    sharers = Counter(plan.host.name for plan in plans if plan.host is not None and plan.role == "worker")
    most, workers = max(sharers.items(), key=lambda item: item[1], default=("", 0))
    if len(hosts) > 1 and workers > 1:
        lines.append(
            f"the {workers} workers of {most} share its link, and each sends all gradients: one worker with all GPUs of the host "
            "sends them once"
        )
    return lines
