"""The command ``prophet-mx compare``: runs a job in turns with plain dist_sync and scheduled, and says which is faster."""

import argparse
import re
import statistics
import sys
import time
from typing import Dict, List, Sequence, Tuple

from ..config import PREFIX
from ..errors import ConfigError, not_allowed
from ..launcher.console import LAUNCHER, Console
from ..launcher.launch import run_plans
from ..policies import DEFAULT, OFF, POLICIES
from .arguments import choice, whole
from .job import add_job_options, planner

LINES = 10  # iterations between two lines of statistics, of which the times are read
LINE = re.compile(r"iterations (\d+) to (\d+): ([\d.]+) ms each")
PATIENCE = 60.0  # seconds without a time after which a line says how to get one
HOW = "the script must make a dist_sync store, and wrap it in ScheduledKVStore; --schedule wraps it without a change"
SAME = 0.02  # share of an iteration's time: smaller differences are called none

HELP = "run a job in turns plain and scheduled, and say which is faster"
DESCRIPTION = "Run an MXNet dist_sync job in turns with plain dist_sync and scheduled, and say which is faster."
EPILOG = """\
example, two workers and one server on this machine:
  prophet-mx compare -n 2 -s 1 -- python train.py --kv-store dist_sync

example, on two hosts, with a script that does not use prophet_mx:
  prophet-mx compare -H gpu1:4,gpu2:4 --gpus-per-worker 1 --schedule -- python train.py

Each turn starts the whole job twice, once with plain dist_sync (PROPHET_POLICY=off) and once with
the policy. A run ends when every worker has done enough iterations. The order changes from turn
to turn. --timeout limits each run.

What COMMAND has to do:
- Wrap its store in ScheduledKVStore, or be started with --schedule. The times are those of the
  log (PROPHET_LOG_EVERY). The script must not set the policy itself.
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
    add("--turns", type=whole(100), default=3, metavar="N", help="how often both run (default: 3)")
    add("--iterations", type=whole(10**6, LINES), default=100, metavar="N", help="iterations to measure in each run (default: 100)")
    add("--warmup", type=whole(10**6, 0), default=20, metavar="N", help="iterations before those (default: 20)")
    names = tuple(POLICIES)
    add("--policy", type=choice(names), default=DEFAULT, metavar="NAME", help=f"one of {', '.join(names)} (default: {DEFAULT})")
    add("--quiet", action="store_true", help="do not print the output of the jobs")
    add_job_options(parser)


class IterationTimes:
    """Reads the times of iterations from a job's output, and knows when every worker has told enough of them."""

    def __init__(self, workers: Sequence[str], warmup: int, iterations: int) -> None:
        self._warmup, self._needed = warmup, iterations
        self._found: Dict[str, List[Tuple[int, float]]] = {label: [] for label in workers}  # (iterations, ms)
        self.last = 0  # iteration of which any worker has told

    def sink(self, label: str, text: str, final: bool) -> None:
        """A line of output, as a :data:`~prophet_mx.launcher.console.Sink` has it."""
        match = LINE.search(text) if final and label in self._found else None
        if not match:
            return
        first, last = int(match.group(1)), int(match.group(2))
        self.last = max(self.last, last)
        if first >= self._warmup:
            self._found[label].append((last - first, float(match.group(3))))

    def enough(self) -> bool:
        """Whether every worker has told of as many iterations as are needed."""
        return all(sum(count for count, _ in told) >= self._needed for told in self._found.values())

    @property
    def seconds(self) -> float:
        """Mean time of an iteration, over all that were told of; 0 if none was."""
        told = [each for one in self._found.values() for each in one]
        return sum(count * ms for count, ms in told) / 1e3 / sum(count for count, _ in told) if told else 0.0


def verdict(plain: Sequence[float], scheduled: Sequence[float], policy: str) -> str:
    """Which is faster, from the seconds per iteration of each run."""
    before, after = statistics.median(plain), statistics.median(scheduled)
    shown = f"{_ms(after)} with {policy} ({_range(scheduled)}), {_ms(before)} with plain dist_sync ({_range(plain)})"
    apart = max(scheduled) < min(plain) or max(plain) < min(scheduled)
    if not apart or abs(before / after - 1) < SAME:
        return f"No difference can be told: an iteration takes {shown}."
    change = f"{before / after:.2f} times as fast" if after < before else f"{after / before:.2f} times as slow"
    return f"Scheduling makes this job {change}: an iteration takes {shown}."


def no_times(times: IterationTimes, warmup: int) -> str:
    """Why a run has given no times, and what to do about it."""
    if times.last:
        return (
            f"ended after about {times.last} iterations, but times count from iteration {warmup + LINES} on: train for longer, or set "
            "a smaller --warmup"
        )
    return f"ended, and its log has no times of iterations: {HOW}. A job of fewer than {LINES} iterations is too short"


def _named(policy: str) -> str:
    return "plain dist_sync" if policy == OFF else f"policy {policy}"


def _range(seconds: Sequence[float]) -> str:
    return _ms(seconds[0]) if len(seconds) == 1 else f"{1e3 * min(seconds):.1f} to {_ms(max(seconds))}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"


def run(arguments: argparse.Namespace) -> int:
    """Run the command; its exit code."""
    wrong = [word for word in arguments.env if word.partition("=")[0] in (PREFIX + "POLICY", PREFIX + "LOG_EVERY")]
    if wrong:
        raise ConfigError(not_allowed(f"--env {wrong[0]}", "--policy NAME, --iterations N", ": compare sets it"))
    found: Dict[str, List[float]] = {OFF: [], arguments.policy: []}
    for turn in range(arguments.turns):
        for policy in list(found) if turn % 2 == 0 else reversed(list(found)):
            seconds = _measured(arguments, policy, f"turn {turn + 1} of {arguments.turns}")
            if not seconds:
                return 1
            found[policy].append(seconds)
    print(verdict(found[OFF], found[arguments.policy], arguments.policy))
    return 0


def _measured(arguments: argparse.Namespace, policy: str, turn: str) -> float:
    """Seconds per iteration of one run; 0 after a line that says why there are none."""
    plans = planner(arguments, {PREFIX + "POLICY": policy, PREFIX + "LOG_EVERY": str(LINES)})()
    times = IterationTimes([plan.label for plan in plans if plan.role == "worker"], arguments.warmup, arguments.iterations)
    console = Console(sys.stdout)

    def sink(label: str, text: str, final: bool) -> None:
        times.sink(label, text, final)
        if not arguments.quiet:
            console(label, text, final)

    reminders = [time.monotonic() + PATIENCE]

    def enough() -> bool:
        if reminders and time.monotonic() >= reminders[0]:
            reminders.clear()
            if not times.last:
                console(LAUNCHER, f"no times of iterations so far: {HOW}", True)
        return times.enough()

    result = run_plans(plans, timeout=arguments.timeout, grace=arguments.grace, sink=sink, capture=False, signals=True, until=enough)
    if result.exit_code:
        print(f"prophet-mx compare: error: the job with {_named(policy)} failed: {result.reason}", file=sys.stderr)
        return 0.0
    if not times.seconds:
        print(f"prophet-mx compare: error: the job with {_named(policy)} {no_times(times, arguments.warmup)}", file=sys.stderr)
        return 0.0
    console(LAUNCHER, f"{turn}, policy {policy}: {_ms(times.seconds)} per iteration", True)
    return times.seconds
