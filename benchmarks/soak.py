"""Runs a job for a long time while processes are paused, killed and their network slowed down, and tells what survived.

    python -m benchmarks.soak --minutes 10           random faults, then as many iterations of plain dist_sync
    python -m benchmarks.soak --iterations 10000     no faults: does it stay small, and are the weights those of plain dist_sync

Faults: SIGSTOP of any process for some seconds, SIGKILL of any (the launcher then ends the job, and it is started again from its
checkpoint), and as root, in a network namespace of its own, another rate of the link. What goes wrong follows from --seed.

Exit code 0: the weights are those of plain dist_sync, bit for bit, nothing hung, and memory, threads and file descriptors did not
grow; 1: not so; 2: wrong argument. Nothing is left running.
"""

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import psutil

import prophet_mx
from prophet_mx.cli.arguments import cost_seconds, count
from prophet_mx.launcher.launch import JobResult, run_job
from prophet_mx.quantities import format_rate, parse_rate

JOB = Path(__file__).with_name("jobs") / "soak.py"
PATIENCE = 90.0  # seconds without an iteration, with nothing paused, that count as a hang
GROWTH = 0.02  # of a worker's memory that is allowed, from a tenth of its life on
STEADY = 0.01  # likewise where nothing goes wrong
MESSAGE = 8  # bytes that MXNet's network library keeps of each message that a worker has sent, until the process ends
LEAD = 300  # iterations from the decision to stop to the stop
BETWEEN = 2.0, 15.0  # seconds between two faults
RATES = ("40mbit", "200mbit", "1gbit")

Sample = Tuple[int, int, int, int, int]  # iteration, resident bytes, threads, file descriptors, messages


class Running:
    """One job in a thread: its newest iteration, its workers' samples, and how it ended."""

    def __init__(self, prefix: Sequence[str], arguments: Sequence[str], env: Dict[str, str]) -> None:
        self.iteration = -1
        self.moved = time.monotonic()
        self.samples: Dict[str, List[Sample]] = {}
        self.result: Optional[JobResult] = None
        self.tail: List[str] = []
        command = [*prefix, sys.executable, str(JOB), *arguments]
        self._thread = threading.Thread(target=self._run, args=(command, env))
        self._thread.start()

    def _run(self, command: Sequence[str], env: Dict[str, str]) -> None:
        self.result = run_job(command, 2, 1, env=env, grace=5.0, sink=self._line, capture=False)

    def _line(self, label: str, text: str, final: bool) -> None:
        found = re.match(r"at (\d+) rank \d+ rss (\d+) threads (\d+) fds (\d+) messages (\d+)", text)
        if found:
            sample = tuple(map(int, found.groups()))
            self.samples.setdefault(label, []).append(sample)
            self.iteration, self.moved = max(self.iteration, sample[0]), time.monotonic()
        else:
            self.tail = self.tail[-60:] + [f"[{label}] {text}"]

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def join(self) -> None:
        self._thread.join()

    def processes(self) -> List[psutil.Process]:
        """The scheduler, the servers and the workers."""
        found = []
        for child in psutil.Process().children():
            try:
                if "DMLC_ROLE" in child.environ() and str(JOB) in child.cmdline():
                    found.append(child)
            except psutil.Error:
                pass
        return found

    def kill(self) -> None:
        for process in self.processes():
            process.kill()


@contextmanager
def network() -> Iterator[Optional[str]]:
    """A network namespace of its own with a loopback that can be slowed down, as root; else None."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        yield None
        return
    name = f"prophet-soak-{os.getpid()}"
    if subprocess.call(["ip", "netns", "add", name], stderr=subprocess.DEVNULL) != 0:
        yield None
        return
    try:
        subprocess.check_call(["ip", "-n", name, "link", "set", "lo", "up", "mtu", "1500"])
        yield name
    finally:
        subprocess.call(["ip", "netns", "delete", name])


class Faults:
    """What goes wrong, drawn from a seed."""

    def __init__(self, rng: random.Random, namespace: Optional[str]) -> None:
        self._rng = rng
        self._namespace = namespace
        self.count: Counter = Counter()

    @property
    def kills(self) -> int:
        return sum(count for name, count in self.count.items() if name.startswith("kill"))

    def one(self, job: Running) -> None:
        """Let something go wrong; blocks while a process is paused."""
        kind = self._rng.choice(["pause", "pause", "kill"] + (["pause", "rate", "rate"] if self._namespace else []))
        if kind == "rate":
            rate = self._rng.choice(RATES)
            words = f"qdisc replace dev lo root tbf rate {rate} burst 64kb latency 200ms"
            subprocess.check_call(["tc", "-n", str(self._namespace), *words.split()])
            self.count[f"link at {format_rate(parse_rate(rate))}"] += 1
            return
        processes = job.processes()
        if not processes or job.iteration < 0:
            return  # it is starting
        process = self._rng.choice(processes)
        try:
            role = process.environ()["DMLC_ROLE"]
            if kind == "kill":
                process.kill()
            else:
                process.suspend()
                time.sleep(self._rng.uniform(0.2, 5))
                process.resume()
            self.count[f"{kind} {role}"] += 1
        except psutil.Error:
            pass  # it had ended
        job.moved = time.monotonic()


def package_env() -> Dict[str, str]:
    """With which a child imports the very prophet_mx that this process has imported. Small units give something to order."""
    path = [str(Path(prophet_mx.__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, path)), "OMP_NUM_THREADS": "1", "PROPHET_UNIT": "16KiB"}


class Soak:
    """The long run.

    Parameters
    ----------
    minutes : of faults.
    folder : of the checkpoint, and of the file that tells the job where to stop.
    """

    def __init__(self, minutes: float, folder: str, faults: Faults, rng: random.Random) -> None:
        self._end = time.monotonic() + 60 * minutes
        self._stop = Path(folder, "stop")
        self._faults = faults
        self._rng = rng
        self.histories: List[Dict[str, List[Sample]]] = []
        self.starts = self.hangs = self.failures = 0

    def run(self, start: Callable[[], Running]) -> bool:
        """Start the job again and again until it has come to its end; False if it keeps failing by itself."""
        while self.failures <= 3 and self.hangs <= 3:
            kills = self._faults.kills
            job = start()
            self.starts += 1
            try:
                self._watch(job)
            finally:
                job.kill()
                job.join()
            self.histories.append(job.samples)
            if job.result is not None and job.result.exit_code == 0:
                return True
            if self._faults.kills == kills:
                self.failures += 1
                print("\n".join([f"FAILED: {job.result.reason if job.result else 'not started'}"] + job.tail[-20:]), flush=True)
        return False

    def _watch(self, job: Running) -> None:
        """Until the job ends: let things go wrong, notice a hang, and tell it to stop when the time is over."""
        next_fault = time.monotonic() + self._rng.uniform(*BETWEEN)
        while job.running:
            time.sleep(0.2)
            now = time.monotonic()
            if now > self._end and not self._stop.exists() and job.iteration >= 0:
                new = self._stop.with_suffix(".new")
                new.write_text(str((job.iteration // 100 + 1) * 100 + LEAD))
                new.rename(self._stop)
            if now > next_fault and not self._stop.exists():
                self._faults.one(job)
                next_fault = time.monotonic() + self._rng.uniform(*BETWEEN)
            if now - job.moved > PATIENCE:
                self.hangs += 1
                print("\n".join([f"HUNG at iteration {job.iteration}"] + job.tail[-20:]), flush=True)
                job.kill()
                job.moved = now


def soak(minutes: float, seed: int, pace: float, iterations: Optional[int] = None) -> int:
    """The long run, of so many minutes with faults or of so many iterations without, and the comparison; the exit code."""
    with tempfile.TemporaryDirectory(prefix="prophet-soak-") as folder, network() as namespace:
        prefix = ["ip", "netns", "exec", namespace] if namespace else []
        if iterations:
            Path(folder, "stop").write_text(str(iterations))  # no more faults once a job knows where to stop
            print(f"soak: {iterations} iterations, no faults", flush=True)
        else:
            print(f"soak: {minutes:g} minutes, seed {seed}, {'with' if namespace else 'without'} rate changes", flush=True)
        rng = random.Random(seed)
        faults = Faults(rng, namespace)
        run = Soak(minutes, folder, faults, rng)
        finished = run.run(lambda: Running(prefix, ["scheduled", folder, str(pace)], package_env()))
        print(
            f"soak: {run.starts} starts, {run.hangs} hung, {run.failures} failed without a kill; faults: "
            + (", ".join(f"{count} {name}" for name, count in sorted(faults.count.items())) or "none"),
            flush=True,
        )
        grown = growth(run.histories, STEADY if iterations else GROWTH)
        same = finished and compare(folder, prefix, namespace)
    return 0 if same and not run.hangs and not run.failures and not grown else 1


def growth(histories: Sequence[Dict[str, List[Sample]]], allowed: float = GROWTH) -> bool:
    """Print how the memory of the longest life of a worker went; whether it grew by more than is allowed, beside what MXNet keeps of each
    message, with prophet_mx or without."""
    lives = [(label, samples) for history in histories for label, samples in history.items() if len(samples) > 1]
    if not lives:
        print("memory: no life of a worker was long enough")
        return False
    grown = False
    longest = max(samples[-1][0] - samples[0][0] for _, samples in lives)
    for label, samples in lives:
        if samples[-1][0] - samples[0][0] < longest:
            continue
        first, last = samples[max(1, len(samples) // 10)] if len(samples) > 2 else samples[0], samples[-1]
        messages = last[4] - first[4]
        kept = MESSAGE * messages
        share = (last[1] - kept) / first[1] - 1
        course = ", ".join(f"{samples[(len(samples) - 1) * part // 10][1] / 1e6:.1f}" for part in (3, 5, 7, 9))
        print(
            f"memory: {label}, iterations {first[0]} to {last[0]}: {first[1] / 1e6:.1f}, {course}, {last[1] / 1e6:.1f} MB "
            f"({share:+.2%}, without {kept / 1e6:.1f} MB for {messages} messages), threads {first[2]} to {last[2]}, "
            f"file descriptors {first[3]} to {last[3]}"
        )
        grown = grown or share > allowed or last[2] > first[2] or last[3] > first[3]
    return grown


def compare(folder: str, prefix: Sequence[str], namespace: Optional[str]) -> bool:
    """Train as many iterations with plain dist_sync, undisturbed; whether the weights are the same."""
    if namespace:
        subprocess.call(["tc", "-n", namespace, "qdisc", "delete", "dev", "lo", "root"], stderr=subprocess.DEVNULL)
    Path(folder, "checkpoint.npz").unlink()
    job = Running(prefix, ["plain", folder, "0"], package_env())
    job.join()
    if job.result is None or job.result.exit_code != 0 and not Path(folder, "final-plain.npz").exists():
        print("\n".join(["plain dist_sync failed"] + job.tail[-20:]))
        return False
    print("plain dist_sync, for comparison:")
    growth([job.samples])
    with np.load(Path(folder, "final-plain.npz")) as plain, np.load(Path(folder, "final-scheduled.npz")) as ours:
        different = [name for name in plain.files if plain[name].tobytes() != ours[name].tobytes()]
        print(
            f"weights: {len(plain.files) - 1} arrays after {int(ours['iteration'])} iterations, "
            + (f"DIFFERENT from plain dist_sync: {', '.join(different)}" if different else "the same as plain dist_sync's, bit for bit")
        )
    return not different


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10, help="minutes of faults (default: 10); the comparison takes more time")
    parser.add_argument("--seed", type=int, default=1, help="seed of the faults (default: 1)")
    parser.add_argument("--pace", type=cost_seconds, default=0.02, help="seconds that an iteration computes (default: 0.02)")
    parser.add_argument("--iterations", type=count, metavar="N", help="instead: N iterations without faults")
    arguments = parser.parse_args(argv)
    if arguments.minutes <= 0 or arguments.pace < 0 or arguments.iterations is not None and arguments.iterations < 1:
        parser.error("--minutes and --iterations are above 0, --pace is not negative")
    return soak(arguments.minutes, arguments.seed, arguments.pace, arguments.iterations)


if __name__ == "__main__":
    sys.exit(main())
