"""The command ``prophet-mx compare``: runs a job in turns plain and scheduled, and says which is faster."""

import argparse
import os
import re
import statistics
import sys
import time
from typing import Dict, List, Sequence, Tuple

from ..config import PREFIX
from ..errors import ConfigError, not_allowed
from ..launcher.console import LAUNCHER, Console
from ..launcher.launch import run_plans
from ..launcher.outlet import Outlet
from ..policies import DEFAULT, OFF, POLICIES
from .arguments import choice, whole
from .job import add_job_options, command_of, planner, pytorch_planner
from .turns import MOST_TURNS, difference

LINES = 10  # iterations between two lines of statistics, of which the times are read
LINE = re.compile(r"iterations (\d+) to (\d+): ([\d.]+) ms each")
PATIENCE = 60.0  # seconds without a time after which a line says how to get one
HOW = "the script must make a dist_sync store, and wrap it in ScheduledKVStore; --schedule wraps it without a change"
HOW_PYTORCH = "the script must train with DistributedDataParallel, and step() a ScheduledOptimizer"
SAME = 0.02  # share of an iteration's time: smaller differences do not matter
TURNS = 7  # of runs whose times vary by 5%, they see that one is 10% faster in four comparisons of five
LAUNCHERS = ("torchrun", "accelerate", "deepspeed")  # of PyTorch jobs
MODULES = ("torch.distributed.run", "torch.distributed.launch")

HELP = "run a job in turns plain and scheduled, and say which is faster"
DESCRIPTION = "Run an MXNet dist_sync job, or a PyTorch job, in turns plain and scheduled, and say which is faster."
EPILOG = """\
example, two workers and one server on this machine:
  prophet-mx compare -n 2 -s 1 -- python train.py --kv-store dist_sync

example, on two hosts, with a script that does not use prophet_mx:
  prophet-mx compare -H gpu1:4,gpu2:4 --gpus-per-worker 1 --schedule -- python train.py

example, a PyTorch job on this machine:
  prophet-mx compare -- torchrun --nproc-per-node 2 train.py

Each turn starts the whole job twice, once plain (PROPHET_POLICY=off) and once with the policy. A
run ends when every worker has done enough iterations; its result is the median time of an
iteration. The order changes from turn to turn. --timeout limits each run.

The verdict is a difference only if it holds at 95% (Student's paired test). With the default
number of turns, a gain of 10% is mostly seen where runs vary by 5%. Otherwise the last line says
how many turns would show a difference of the size seen.

What COMMAND has to do:
- Wrap its store in ScheduledKVStore, or be started with --schedule. The times are those of the
  log (PROPHET_LOG_EVERY). The script must not set the policy itself.
- With PyTorch: train with DistributedDataParallel and ScheduledOptimizer. It is started as it is
  here; options about workers, servers and hosts are its launcher's own. --pytorch says that
  COMMAND starts such a job, where it is not torchrun. PROPHET_FALLBACK is off unless --env sets it.
- Train for at least --warmup + --iterations iterations that are alike: leave out evaluation.
- Write no checkpoints, or be able to begin anew. It is started several times with the same
  arguments.

Use the network that the job will have. On one machine alone there is next to nothing to gain.

exit codes:
  0  the comparison is complete, whatever its result
  1  a job failed, or its log had no times
  2  wrong argument"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    add("--turns", type=whole(MOST_TURNS, 2), default=TURNS, metavar="N", help=f"how often both run (default: {TURNS})")
    add("--iterations", type=whole(10**6, LINES), default=100, metavar="N", help="iterations to measure in each run (default: 100)")
    add("--warmup", type=whole(10**6, 0), default=20, metavar="N", help="iterations before those (default: 20)")
    names = tuple(POLICIES)
    add("--policy", type=choice(names), default=DEFAULT, metavar="NAME", help=f"one of {', '.join(names)} (default: {DEFAULT})")
    add("--pytorch", action="store_true", help="COMMAND starts a PyTorch job, as torchrun does")
    add("--quiet", action="store_true", help="do not print the output of the jobs")
    add_job_options(parser)


class IterationTimes:
    """Reads the times of iterations from a job's output, and knows when every worker has told enough of them. Several ranks may write into
    the output of one process."""

    def __init__(self, workers: Sequence[str], warmup: int, iterations: int) -> None:
        self._warmup, self._needed = warmup, iterations
        self._found: Dict[str, Dict[Tuple[int, int], List[float]]] = {label: {} for label in workers}  # by first and last: ms
        self.last = 0  # iteration of which any worker has told

    def sink(self, label: str, text: str, final: bool) -> None:
        """A line of output, as a :data:`~prophet_mx.launcher.console.Sink` has it."""
        match = LINE.search(text) if final and label in self._found else None
        if not match:
            return
        first, last = int(match.group(1)), int(match.group(2))
        self.last = max(self.last, last)
        if first >= self._warmup:
            self._found[label].setdefault((first, last), []).append(float(match.group(3)))

    def enough(self) -> bool:
        """Whether every worker has told of as many iterations as are needed."""
        return all(sum(last - first for first, last in told) >= self._needed for told in self._found.values())

    @property
    def seconds(self) -> float:
        """Median time of an iteration, over all that were told of; 0 if none was. A line tells the mean of its iterations."""
        told = [ms for one in self._found.values() for (first, last), all_ms in one.items() for ms in all_ms * (last - first)]
        return statistics.median(told) / 1e3 if told else 0.0


def verdict(plain: Sequence[float], scheduled: Sequence[float], policy: str, what: str = "plain dist_sync") -> str:
    """Which is faster, from the seconds per iteration of each run, two of each turn; ``what`` the plain runs are called."""
    before, after = statistics.median(plain), statistics.median(scheduled)
    takes = f"an iteration takes {_ms(after)} with {policy} ({_range(scheduled)}), {_ms(before)} with {what} ({_range(plain)})"
    found = difference(plain, scheduled)
    sure = f"{found.low:.2f} to {found.high:.2f}"
    if not found.seen:
        enough = f"about {found.needed} turns (--turns {found.needed})" if found.needed else f"more than {MOST_TURNS} turns"
        return (
            f"No difference can be seen: {takes}. At 95%, scheduling makes this job {sure} times as fast. To see a difference of the size "
            f"seen, {found.ratio:.2f} times, {enough} would be needed."
        )
    if abs(found.ratio - 1) < SAME:
        return f"No difference that matters: {takes}. At 95%, scheduling makes this job {sure} times as fast."
    if found.ratio > 1:
        return f"Scheduling makes this job {found.ratio:.2f} times as fast ({sure} at 95%): {takes}."
    return f"Scheduling makes this job {1 / found.ratio:.2f} times as slow ({1 / found.high:.2f} to {1 / found.low:.2f} at 95%): {takes}."


def is_pytorch(command: Sequence[str]) -> bool:
    """Whether a command starts a PyTorch job, by the name of its launcher."""
    words = command_of(command)
    return bool(words) and (
        os.path.basename(words[0]) in LAUNCHERS or any(pair in zip(["-m"] * len(MODULES), MODULES) for pair in zip(words, words[1:]))
    )


def no_times(times: IterationTimes, warmup: int, how: str = HOW) -> str:
    """Why a run has given no times, and what to do about it."""
    if times.last:
        return (
            f"ended after about {times.last} iterations, but times count from iteration {warmup + LINES} on: train for longer, or set "
            "a smaller --warmup"
        )
    return f"ended, and its log has no times of iterations: {how}. A job of fewer than {LINES} iterations is too short"


def _named(policy: str, plain: str) -> str:
    return plain if policy == OFF else f"policy {policy}"


def _range(seconds: Sequence[float]) -> str:
    return _ms(seconds[0]) if len(seconds) == 1 else f"{1e3 * min(seconds):.1f} to {_ms(max(seconds))}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"


def run(arguments: argparse.Namespace) -> int:
    """Run the command; its exit code."""
    wrong = [word for word in arguments.env if word.partition("=")[0] in (PREFIX + "POLICY", PREFIX + "LOG_EVERY")]
    if wrong:
        raise ConfigError(not_allowed(f"--env {wrong[0]}", "--policy NAME, --iterations N", ": compare sets it"))
    pytorch = arguments.pytorch or is_pytorch(arguments.command)
    if pytorch and arguments.policy != DEFAULT:
        raise ConfigError(not_allowed(f"--policy {arguments.policy}", DEFAULT, " for a PyTorch job"))
    plain = "plain DistributedDataParallel" if pytorch else "plain dist_sync"
    found: Dict[str, List[float]] = {OFF: [], arguments.policy: []}
    for turn in range(arguments.turns):
        for policy in list(found) if turn % 2 == 0 else reversed(list(found)):
            seconds = _measured(arguments, policy, f"turn {turn + 1} of {arguments.turns}", pytorch, plain)
            if not seconds:
                return 1
            found[policy].append(seconds)
    print(verdict(found[OFF], found[arguments.policy], arguments.policy, plain))
    return 0


def _measured(arguments: argparse.Namespace, policy: str, turn: str, pytorch: bool, plain: str) -> float:
    """Seconds per iteration of one run; 0 after a line that says why there are none."""
    settings, how = {PREFIX + "POLICY": policy, PREFIX + "LOG_EVERY": str(LINES)}, HOW_PYTORCH if pytorch else HOW
    plans = (pytorch_planner if pytorch else planner)(arguments, settings)()
    times = IterationTimes([plan.label for plan in plans if plan.role == "worker"], arguments.warmup, arguments.iterations)
    output = Outlet(sys.stdout)
    console = Console(output)

    def sink(label: str, text: str, final: bool) -> None:
        times.sink(label, text, final)
        if not arguments.quiet:
            console(label, text, final)

    reminders = [time.monotonic() + PATIENCE]

    def enough() -> bool:
        if reminders and time.monotonic() >= reminders[0]:
            reminders.clear()
            if not times.last:
                console(LAUNCHER, f"no times of iterations so far: {how}", True)
        return times.enough()

    limits = {"timeout": arguments.timeout, "grace": arguments.grace}
    with output:
        result = run_plans(plans, **limits, sink=sink, capture=False, signals=True, until=enough, output=output)
    if result.exit_code:
        print(f"prophet-mx compare: error: the job with {_named(policy, plain)} failed: {result.reason}", file=sys.stderr)
        return 0.0
    if not times.seconds:
        print(f"prophet-mx compare: error: the job with {_named(policy, plain)} {no_times(times, arguments.warmup, how)}", file=sys.stderr)
        return 0.0
    Console(sys.stdout)(LAUNCHER, f"{turn}, policy {policy}: {_ms(times.seconds)} per iteration", True)
    return times.seconds
