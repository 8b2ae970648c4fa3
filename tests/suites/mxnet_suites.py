"""Runs MXNet's own test suites on a checkout of MXNet 1.9.1, with its own stores and with every store wrapped, and compares.

    python tests/suites/mxnet_suites.py --mxnet FOLDER                     all suites, with as many processes as MXNet's own CI starts
    python tests/suites/mxnet_suites.py --mxnet FOLDER --only type=invalid --workers 2

Only the checkout's tests/ is read (``git clone --branch 1.9.1 https://github.com/apache/mxnet``); MXNet itself is the installed one.
Where there are no two GPUs, the suites that take them take CPU devices instead.

Exit code 0: whatever passes plain passes wrapped; what fails plain as well is listed; 1: not so, with the output of all processes;
2: wrong argument. Nothing is left running.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from prophet_mx.launcher.launch import run_job

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from support.cluster import package_env  # noqa: E402

PROCESS = HERE / "mxnet_suite.py"
UNIT, NIGHTLY = "tests/python/unittest/", "tests/nightly/"
P3 = {"DMLC_PS_VAN_TYPE": "p3", "DMLC_PS_WATER_MARK": "10"}


@dataclass(frozen=True)
class Suite:
    """A file of tests, or a script for the workers of a job, which then has as many servers."""

    path: str
    arguments: Tuple[str, ...] = ()
    workers: int = 0
    env: Tuple[Tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        return " ".join([self.path.rsplit("/", 1)[1], *self.arguments, *(f"{name}={value}" for name, value in self.env[:1])])


# As MXNet's own CI runs them (ci/docker/runtime_functions.sh).
SUITES = (
    Suite(UNIT + "test_kvstore.py"),
    Suite(UNIT + "test_gluon_trainer.py"),
    *(
        Suite(NIGHTLY + "dist_sync_kvstore.py", arguments, 7)
        for arguments in (
            ("--type=gluon_step_cpu",),
            ("--type=gluon_sparse_step_cpu",),
            ("--type=invalid_cpu",),
            ("--type=gluon_type_cpu",),
            ("--type=default_cpu",),
            ("--type=default_cpu", "--no-multiprecision"),
            ("--type=compressed_cpu",),
            ("--type=compressed_cpu", "--no-multiprecision"),
        )
    ),
    Suite(NIGHTLY + "dist_sync_kvstore.py", ("--type=init_gpu",), 4),
    Suite(NIGHTLY + "dist_device_sync_kvstore.py", (), 4),
    Suite(NIGHTLY + "dist_device_sync_kvstore_custom.py", (), 4),
    Suite(NIGHTLY + "dist_device_sync_kvstore_custom.py", (), 4, tuple(P3.items())),
)


class Run:
    """One run of a suite: the outcome of each test, with the error in words, '' for that of the whole."""

    def __init__(self, outputs: Sequence[str], exit_code: Optional[int], logs: str) -> None:
        self.logs = logs
        self.units = 0
        self.outcomes: Dict[str, Tuple[str, str]] = {}
        for line in re.findall(r"^suite: (.*)$", "\n".join(outputs), re.MULTILINE):
            said = json.loads(line)
            self.units += said.get("units", 0)
            if "test" in said and self.outcomes.get(said["test"], ("passed",))[0] in ("passed", "skipped"):
                self.outcomes[said["test"]] = said["outcome"], said.get("why", "")
        if exit_code is None:
            self.outcomes[""] = "hung", ""
        elif exit_code and all(outcome in ("passed", "skipped") for outcome, _ in self.outcomes.values()):
            self.outcomes[""] = "failed", f"ended with {exit_code}"
        elif not self.outcomes:
            self.outcomes[""] = "failed", "no test was run"


def run(suite: Suite, mode: str, checkout: Path, workers: int, timeout: float) -> Run:
    """Run a suite with plain or wrapped stores."""
    env = package_env({"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **dict(suite.env)}, light=False)
    with tempfile.TemporaryDirectory(prefix="prophet-suites-") as folder:
        command = [sys.executable, str(PROCESS), mode, folder, str(checkout / suite.path), *suite.arguments]
        if suite.workers:
            result = run_job(command, workers, workers, env=env, timeout=timeout)
            return Run([worker.output for worker in result.workers], None if result.exit_code == 124 else result.exit_code, result.logs())
        return run_process(command, env, timeout)


def run_process(command: Sequence[str], env: Mapping[str, str], timeout: float) -> Run:
    """Run a suite that is no job."""
    own = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS" and not name.startswith("DMLC_")}
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(command, env={**own, **env}, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            code: Optional[int] = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        text = output.read()
    return Run([text], code, text)


def compare(plain: Run, wrapped: Run) -> Tuple[List[str], List[str]]:
    """What is worse wrapped than plain, and what is not right in either, in words."""
    worse, alike = [], []
    for test in sorted({*plain.outcomes, *wrapped.outcomes}):
        before, after = (run.outcomes.get(test, ("not run", "")) for run in (plain, wrapped))
        sentence = f"{test}: " * bool(test) + f"plain {' '.join(before).strip()}; wrapped {' '.join(after).strip()}"
        if after[0] not in ("passed", before[0]):
            worse.append(sentence)
        elif (before[0], after[0]) != ("passed", "passed"):
            alike.append(sentence)
    return worse, alike


def counts(run: Run) -> str:
    """How many tests ended how."""
    ends = [outcome for outcome, _ in run.outcomes.values()]
    return ", ".join(f"{ends.count(end)} {end}" for end in sorted(set(ends)))


def run_all(suites: Sequence[Suite], checkout: Path, workers: Optional[int], timeout: float) -> int:
    """Run each suite both ways and print a table as it grows; the exit code."""
    print("| suite | workers | plain | wrapped | units scheduled | seconds |\n|---|---:|---|---|---:|---:|", flush=True)
    faults, notes = [], []
    for suite in suites:
        count = suite.workers and (workers or suite.workers)
        began = time.monotonic()
        plain = run(suite, "plain", checkout, count, timeout)
        between = time.monotonic()
        wrapped = run(suite, "wrapped", checkout, count, timeout)
        print(
            f"| {suite.name} | {count or ''} | {counts(plain)} | {counts(wrapped)} | {wrapped.units or ''} "
            f"| {between - began:.0f}, {time.monotonic() - between:.0f} |",
            flush=True,
        )
        worse, alike = compare(plain, wrapped)
        notes += [f"{suite.name}: {sentence}" for sentence in alike]
        faults += [f"{suite.name}: {sentence}" for sentence in worse]
        if worse:
            print(f"\n{suite.name}, wrapped:\n{wrapped.logs}\n", file=sys.stderr, flush=True)
    for title, sentences in (("fails plain as well", notes), ("WORSE WRAPPED THAN PLAIN", faults)):
        if sentences:
            print("\n" + "\n".join([f"{title}:", *sentences]))
    print("\n" + ("not all that passes plain passes wrapped" if faults else "whatever passes plain passes wrapped"))
    return 1 if faults else 0


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--mxnet", metavar="FOLDER", required=True, type=Path, help="a checkout of MXNet 1.9.1, or its tests/ alone in FOLDER"
    )
    parser.add_argument("--only", metavar="WORD", default="", help="the suites whose name in the table contains WORD")
    parser.add_argument("--workers", type=int, metavar="N", help="workers and servers of each job (default: 7 or 4, as MXNet's CI)")
    parser.add_argument("--timeout", type=float, metavar="S", default=600, help="seconds after which a run counts as hung (default: 600)")
    arguments = parser.parse_args(argv)
    suites = [suite for suite in SUITES if arguments.only in suite.name]
    if not suites:
        parser.error(f"--only {arguments.only!r} is in no suite's name; allowed: a part of " + ", ".join(suite.name for suite in SUITES))
    if arguments.workers is not None and arguments.workers < 1 or arguments.timeout <= 0:
        parser.error("--workers is a whole number from 1, --timeout is above 0")
    missing = [suite.path for suite in suites if not (arguments.mxnet / suite.path).is_file()]
    if missing:
        parser.error(f"--mxnet {str(arguments.mxnet)!r} is no checkout of MXNet 1.9.1: it has no {missing[0]}")
    return run_all(suites, arguments.mxnet.resolve(), arguments.workers, arguments.timeout)


if __name__ == "__main__":
    sys.exit(main())
