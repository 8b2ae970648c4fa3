"""Answers all questions of benchmarks.questions, publishes the results, and writes the pages and pictures anew; needs root.

    python -m benchmarks.all                           about two hours on two cores
    python -m benchmarks.all --quick --root FOLDER     a round of three iterations of each question's first cell, to try it out

Rounds are the outer loop and questions the inner one, so that what the machine does within hours is in the intervals. A question that fails
does not end the others, and is tried again in the next round. What was measured is in benchmarks/scratch/all: the same command, given again
after an interruption, goes on from there if the code is the same. ``--again`` measures everything anew.

Questions about PyTorch and MXNet's CUDA build run in environments of their own, see the Makefile. A question whose environment is not there
fails. The exit code is 1 if a question failed, 3 without the privileges that namespaces need, 130 after Ctrl-C.
"""

import argparse
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, List, Optional, Sequence

from . import publish
from .comparison.metadata import CODE, ROOT, fingerprint
from .comparison.results import Files, load
from .questions import QUESTIONS, Question

ROUNDS = 3
PATIENCE = 1800  # seconds that a round of a question may take; its jobs have limits of their own
QUICK = {"overhead": ("--pairs", "1", "--iterations", "20", "--warmup", "5"), "validate_simulator": ()}
QUICK_COMPARISON = ("--repeats", "1", "--warmup", "2", "--iterations", "3", "--tries", "1")
NO_ROOT, INTERRUPTED = 3, 130


class Runner:
    """Runs the commands. ``root``: the checkout, or a folder in its place, whose results and pages are written."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.root: Path = options.root
        self.quick: bool = options.quick
        self.lock: Optional[Path] = options.lock
        self.scratch = (ROOT / "benchmarks" / "scratch" if self.root == ROOT else self.root) / "all"
        self.results = self.root / "benchmarks" / "results"
        self._pythons = {"": sys.executable, "torch": options.torch, "cuda": options.cuda}
        self.failed: Dict[str, str] = {}  # question -> how
        self.seconds: Dict[str, float] = dict.fromkeys(QUESTIONS, 0.0)

    def round(self, question: Question, number: int) -> int:
        """Run a round of a question, or the whole of one that has no rounds. Returns the exit code."""
        if question.module not in publish.COMPARISONS:
            return self._once(question) if number == 1 and question.name != "simulator" else 0
        return self._run(question, "--resume", "--until", str(number))

    def publish(self, question: Question) -> int:
        """Publish what was measured, and measure what failed once more."""
        if question.module in publish.COMPARISONS:
            return self._run(question, "--resume")
        return self._once(question)

    def _once(self, question: Question) -> int:
        """A command without rounds, unless its result is that of this code."""
        result = load(question.name, self.results)
        if question.name != "simulator" and result is not None and result.about.get("code") == fingerprint(CODE):
            return 0
        return self._run(question)

    def _run(self, question: Question, *more: str) -> int:
        words = [*more, "--name", question.name, "--results", str(self.scratch), "--publish", question.name]
        words += ["--published", str(self.results)]
        if self.lock is not None and question.module in publish.COMPARISONS:
            words += ["--lock", str(self.lock)]
        if self.quick:
            words += QUICK.get(question.module, QUICK_COMPARISON)
        command = [self._pythons[question.needs], "-m", *self._command(question), *words]
        begin = time.monotonic()
        self.scratch.mkdir(parents=True, exist_ok=True)
        with open(self.scratch / f"{question.name}.log", "a", encoding="utf-8") as log:
            try:
                process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
            except OSError as error:
                print(f"{question.name}: {error}", flush=True)
                return 1
            code = _wait(process)
        self.seconds[question.name] += time.monotonic() - begin
        return code

    def _command(self, question: Question) -> List[str]:
        """Of a quick run the first cell alone."""
        words = question.command()
        if not self.quick or words.count("--cell") < 2:
            return words
        first = words.index("--cell") + 2
        places = [place for place, word in enumerate(words) if word == "--cell" and place >= first]
        return [word for place, word in enumerate(words) if place not in places and place - 1 not in places]


def _wait(process: "subprocess.Popen[bytes]") -> int:
    """The exit code. A process that takes too long is ended, and so is one whose wait is interrupted: it then removes its network."""
    try:
        return process.wait(PATIENCE)
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as error:
        process.send_signal(signal.SIGINT)
        process.wait()
        if isinstance(error, KeyboardInterrupt):
            raise
        return 1


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; see the top of this file. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.all", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--questions", nargs="+", choices=QUESTIONS, default=list(QUESTIONS), metavar="QUESTION", help="only these")
    parser.add_argument("--again", action="store_true", help="forget what an interrupted run has measured")
    parser.add_argument("--quick", action="store_true", help="one round of three iterations of the first cells, to try it out")
    parser.add_argument(
        "--lock", type=Path, metavar="FILE", help="hold a lock on this file while a job runs, so that other work can take turns"
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout whose results and pages are written (default: this one)")
    for name in ("torch", "cuda"):
        python = ROOT / f".venv-{name}" / "bin" / "python"
        parser.add_argument(f"--{name}", default=str(python), metavar="PYTHON", help="of the environment for it (default %(default)s)")
    options = parser.parse_args(arguments)
    options.root = options.root.resolve()
    if options.quick and options.root == ROOT:
        parser.error("--quick needs --root FOLDER: its numbers must not be published")
    if options.root != ROOT and not (options.root / "README.md").exists():
        _copy_pages(options.root)
    runner = Runner(options)
    if options.again:
        shutil.rmtree(runner.scratch, ignore_errors=True)
    try:
        return _run_all(runner, [QUESTIONS[name] for name in options.questions])
    except KeyboardInterrupt:
        print("interrupted: the same command goes on from here", file=sys.stderr)
        return INTERRUPTED


def _run_all(runner: Runner, questions: Sequence[Question]) -> int:
    rounds = 1 if runner.quick else ROUNDS
    print(f"code {fingerprint(CODE)[:9]}, about {sum(question.minutes for question in questions):g} minutes", flush=True)
    for number in range(1, rounds + 1):
        for question in questions:
            code = runner.round(question, number)
            print(f"round {number} of {rounds}, {question.name}: {_said(code)}, {runner.seconds[question.name] / 60:.1f} min", flush=True)
            if code == NO_ROOT:
                return NO_ROOT
            if code == INTERRUPTED:
                raise KeyboardInterrupt
    for question in questions:
        files = Files.published(question.name, runner.results).data
        before = files.stat().st_mtime_ns if files.exists() else 0
        code = runner.publish(question)
        published = files.exists() and files.stat().st_mtime_ns != before
        if code:
            runner.failed[question.name] = "published, but a job or a cell failed" if published else "not published"
    for page in publish.fill(runner.root):
        print(f"written: {page}")
    pictures = [sys.executable, "-m", "benchmarks.plots", "--results", str(runner.results), "--out", str(runner.root / "docs" / "images")]
    if subprocess.call(pictures, cwd=ROOT):
        runner.failed["pictures"] = "not drawn: make plots"
    for question in questions:
        print(f"{question.name}: {runner.seconds[question.name] / 60:.1f} min, {runner.failed.get(question.name, 'published')}")
    for name, how in runner.failed.items():
        print(f"failed: {name}: {how}; see {runner.scratch / name}.log", file=sys.stderr)
    return int(bool(runner.failed))


def _said(code: int) -> str:
    return "done" if code == 0 else f"exit code {code}"


def _copy_pages(root: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "README.md", root)
    shutil.copytree(ROOT / "docs", root / "docs")
    shutil.copytree(ROOT / "benchmarks" / "results", root / "benchmarks" / "results")


if __name__ == "__main__":
    sys.exit(main())
