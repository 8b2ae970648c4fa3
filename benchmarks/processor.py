"""Where the processors' time goes during a job, by role and by what is done: a sampled profile of the whole machine.

    python -m benchmarks.processor --cell resnet50_v1,rho=1,scale=1,rate=3Gbit --methods pushpull,prophet

Runs one job per cell and method under ``perf record`` (Debian: linux-perf), which notes 499 times a second what each core runs, and
counts the samples of the measured iterations. Prints a table in milliseconds of processor time per iteration, all workers and all servers
together; time that the machine's host took counts for the process that ran then. Results are written as by benchmarks.run. The exit code is
1 if a job failed, 3 without the privileges that namespaces need.
"""

import argparse
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Type

import psutil

from prophet_mx.errors import ProphetError

from .comparison.cells import Cell, Load
from .comparison.command import add_job_options
from .comparison.metadata import describe
from .comparison.methods import Method, parse
from .comparison.results import add_output_options, write_everywhere
from .comparison.tables import scaling
from .run import run_method
from .testbed import Testbed, TestbedError, measure
from .testbed.exits import exit_code

CELL = "resnet50_v1,rho=1,scale=1,rate=3Gbit"
RATE = 499  # samples per second and core; not a multiple of what ticks
IDLE = 0  # the kernel's own process
ROLES, OTHERS = ("worker", "server"), "others"
SCAN = 0.5  # seconds between two looks at which processes there are

# What a sample is counted as: the first kind that has one of these words in any of the stack's function names, from a system call
# or an interrupt down; else, in the innermost one's.
STACK = (
    ("network: packets", ("handle_softirqs",)),
    ("network: send", ("__sys_send",)),
    ("network: receive", ("__sys_recv",)),
    ("waking and waiting", ("do_futex", "epoll", "do_sys_poll", "eventfd", "schedule")),
    ("other system calls", ("do_syscall_64", "asm_exc_", "asm_sysvec")),
)
INNERMOST = (
    ("copies", ("memmove", "memset", "memcpy", "CopyFromTo")),
    ("adding up", ("BinaryOpKernel",)),
    ("prophet_mx", ("(prophet_mx/",)),
    ("allocation", ("malloc", "free", "unlink_chunk")),
    ("messages", ("ps::", "zmq::", "google::")),
    ("engine", ("mxnet::engine::",)),
    ("copies and others, unnamed in MXNet", ("[unknown] (libmxnet",)),
    ("MXNet, other", ("(libmxnet",)),
    ("Python", ("(libpython", "(python")),
)
OTHER = "other"


class Sample(NamedTuple):
    """One look at one core: seconds of the monotonic clock, the process, and the stack as ``function (library)``, innermost first."""

    time: float
    pid: int
    stack: List[str]


def samples(text: str) -> Iterator[Sample]:
    """What ``perf script -F pid,time,ip,sym,dso`` printed."""
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if line.strip()]
        if lines:
            pid, time = lines[0].split()[:2]
            yield Sample(float(time.rstrip(":")), int(pid), [_frame(line) for line in lines[1:]])


def _frame(line: str) -> str:
    """``7f.. name+0x1 (/folder/library.so)`` without address and folder; our own libraries as ``prophet_mx/library.so``."""
    name, _, library = line.strip().partition(" ")[2].rpartition(" (")
    return f"{name} ({'prophet_mx/' if '/prophet_mx/_core/' in library else ''}{library.rpartition('/')[2]}"


def kind(stack: Sequence[str]) -> str:
    """What a sample is counted as."""
    for name, words in STACK:
        if any(word in frame for frame in stack if "[kernel" in frame for word in words):
            return name
    innermost = stack[0] if stack else ""
    return next((name for name, words in INNERMOST if any(word in innermost for word in words)), OTHER)


class Profiler:
    """Samples all cores from entering the context to leaving it, and notes what role each process below this one has. Raises
    TestbedError if perf does not run."""

    def __init__(self, folder: str) -> None:
        self._file = str(Path(folder) / "perf.data")
        self.roles: Dict[int, str] = {}  # by process number
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._scan, daemon=True)

    def __enter__(self) -> "Profiler":
        perf = shutil.which("perf")
        if perf is None:
            raise TestbedError("there is no perf (Debian: apt-get install linux-perf)")
        self._perf = subprocess.Popen(
            [perf, "record", "-q", "-a", "-g", "-e", "cpu-clock", "-F", str(RATE), "-k", "CLOCK_MONOTONIC", "-o", self._file],
            stdin=subprocess.DEVNULL,
        )
        self._thread.start()
        return self

    def __exit__(self, raised: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self._end.set()
        self._thread.join()
        self._perf.send_signal(signal.SIGINT)  # writes the rest of its file
        self._perf.wait()

    def _scan(self) -> None:
        while not self._end.wait(SCAN):
            for process in psutil.Process().children(recursive=True):
                try:
                    role = process.environ().get("DMLC_ROLE")
                except psutil.Error:
                    continue
                if role in ROLES:
                    self.roles[process.pid] = role

    def samples(self) -> List[Sample]:
        """All of them. To be called after the end."""
        done = subprocess.run(
            ["perf", "script", "-i", self._file, "-F", "pid,time,ip,sym,dso"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=False,
        )
        if done.returncode:
            raise TestbedError(f"perf script ended with {done.returncode}")
        return list(samples(done.stdout))


def count(found: Iterable[Sample], roles: Dict[int, str], since: float, until: float) -> "Counter[Tuple[str, str]]":
    """Samples between two moments by role and kind; those of all other processes count as ``others``, idle cores not at all."""
    return Counter(
        (roles.get(sample.pid, OTHERS), kind(sample.stack)) for sample in found if sample.pid != IDLE and since <= sample.time <= until
    )


class Profile(NamedTuple):
    """A method's: median ms per iteration, share of the bound, and ms per iteration by role and kind."""

    cell: str
    method: str
    time_ms: float
    over_bound: float
    spent: Dict[Tuple[str, str], float]


def profile(bed: Testbed, cell: Cell, load: Load, method: Method, options: argparse.Namespace) -> Profile:
    """Run one job. Raises TestbedError."""
    with tempfile.TemporaryDirectory(prefix="prophet-bench-") as folder:
        with Profiler(folder) as profiler:
            job = run_method(bed, cell, load, method, options, {})
        found = profiler.samples()
    starts = job.workers[0]["starts"][options.warmup :]
    time = statistics.median(job.times(options.warmup))
    counted = count(found, profiler.roles, starts[0], starts[-1])
    return Profile(
        str(cell),
        method.name,
        time * 1e3,
        time / load.bound,
        {key: number / RATE * 1e3 / (len(starts) - 1) for key, number in counted.items()},
    )


def markdown(profiles: Sequence[Profile]) -> str:
    """A row per role and kind, a column per method."""
    keys = {key for each in profiles for key in each.spent}
    lines = [
        "| ms of processor time per iteration | | " + " | ".join(each.method for each in profiles) + " |",
        "|---|---|" + "---:|" * len(profiles),
    ]
    for role in ROLES + (OTHERS,):
        mine = sorted((key for key in keys if key[0] == role), key=lambda key: -max(each.spent.get(key, 0.0) for each in profiles))
        total = [sum(each.spent.get(key, 0.0) for key in mine) for each in profiles]
        lines.append(f"| **{role if role == OTHERS else role + 's'}** | all | " + " | ".join(f"**{ms:.0f}**" for ms in total) + " |")
        lines += [f"| | {key[1]} | " + " | ".join(f"{each.spent.get(key, 0.0):.0f}" for each in profiles) + " |" for key in mine]
    for name, values in (
        ("iteration, ms", [f"{each.time_ms:.0f}" for each in profiles]),
        ("time / bound", [f"{each.over_bound:.3f}" for each in profiles]),
    ):
        lines.append(f"| {name} | | " + " | ".join(values) + " |")
    return "\n".join(lines) + "\n"


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; see the top of this file. Returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.processor", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cell", action="append", help=f"as for benchmarks.run; may be repeated (default {CELL})")
    parser.add_argument("--methods", default="pushpull,prophet", help="as for benchmarks.run")
    add_job_options(parser)
    add_output_options(parser)
    options = parser.parse_args(arguments)
    profiles: List[Profile] = []
    tables: List[str] = []
    try:
        methods = [parse(name) for name in options.methods.split(",")]
        for cell in map(Cell.parse, options.cell or [CELL]):
            with Testbed(cell.workers, cell.servers, cell.rate) as bed:
                load = cell.load(measure(bed).link)
                mine = [profile(bed, cell, load, method, options) for method in methods]
            sent = scaling(cell.profile, load.model_bytes / 1e6, [load.profile.total_bytes / 1e6])
            tables.append(f"**{cell}**: {sent}\n\n{markdown(mine)}")
            profiles += mine
    except ProphetError as error:
        return exit_code(error)
    table = "\n".join(tables)
    print(table)
    rows = [(each.cell, each.method, *key, round(ms, 2)) for each in profiles for key, ms in sorted(each.spent.items())]
    write_everywhere(options, "processor", ("cell", "method", "role", "what", "ms"), rows, table, describe("processor", arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
