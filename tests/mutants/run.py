"""Plants small faults in a copy of the tree, one at a time, and runs the tests that should see each: what tells whether the tests can fail.

    python -m mutants.run                  all mutants of planted.py, in tests/
    python -m mutants.run lead keys.py     those with one of these texts in their file, or in what they do
    python -m mutants.run --list

The copy is .mutants. It stays, so that another run compiles only what has changed. First the tests run without a fault: those that
fail then would tell nothing. Tests of PyTorch run in .venv-torch; without it, they and their mutants are left out.

Exit code 0: every fault was found; 1: one survived, or its text is no longer in the file exactly once; 2: wrong argument, the copy cannot
be built, or the tests fail without a fault.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import groupby
from pathlib import Path
from typing import Dict, List, NoReturn, Optional, Sequence, Set

from mutants.planted import MUTANTS, Mutant
from support.paths import ROOT

COPY = ROOT / ".mutants"
PYTHONS = {"mxnet": ROOT / ".venv" / "bin" / "python", "torch": ROOT / ".venv-torch" / "bin" / "python"}
PYTEST = ["-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--durations=0", "--durations-min=1000", "--hypothesis-seed=0"]
LIMIT = 600  # seconds for the tests of a mutant, which take under two minutes on a machine that does nothing else
BUILD_LIMIT = 900


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="in a mutant's file, or in what it does (default: all mutants)")
    parser.add_argument("--list", action="store_true", help="list the mutants, and run nothing")
    arguments = parser.parse_args(argv)
    chosen = [each for each in MUTANTS if not arguments.texts or any(text in f"{each.file} {each.does}" for text in arguments.texts)]
    if not chosen:
        parser.error(f"no mutant has {' or '.join(map(repr, arguments.texts))} in its file, or in what it does; --list shows them")
    if arguments.list:
        print("\n".join(map(str, chosen)))
        return 0
    stale = [each for each in chosen if (ROOT / each.file).read_text().count(each.old) != 1]
    for each in stale:
        print(f"stale     {each}: its text is not in the file exactly once")
    without = sorted({each.environment for each in chosen if not PYTHONS[each.environment].exists()})
    if without:
        print(f"left out: the mutants of {', '.join(without)}, which is not installed here")
    runnable = [each for each in chosen if each not in stale and each.environment not in without]
    copy_tree()
    build()
    check_tests(runnable)
    # Mutants of one extension follow one another: each is built once, and not another time without its fault.
    runnable.sort(key=lambda each: (each.extension, each.environment))
    survived = [each for extension, some in groupby(runnable, lambda each: each.extension) for each in survivors(list(some), extension)]
    print(f"{len(runnable) - len(survived)} of {len(runnable)} faults were found, {len(survived)} survived, {len(stale)} are stale")
    return 1 if survived or stale else 0


def copy_tree() -> None:
    """Bring the copy up to date. Files that are the same keep their times, so that they are not compiled again."""
    listed = subprocess.run(["git", "ls-files", "-zco", "--exclude-standard"], cwd=str(ROOT), stdout=subprocess.PIPE, check=True).stdout
    names: Set[Path] = {name for name in map(Path, map(os.fsdecode, listed.split(b"\0"))) if (ROOT / name).is_file()}
    for name in names:
        source, target = ROOT / name, COPY / name
        if not (target.is_file() and target.read_bytes() == source.read_bytes()):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(source), str(target))
    setup = COPY / "setup.py"
    setup.write_text(setup.read_text().replace('"-O2"', '"-O0"'))  # each fault is built in less time
    for source in (ROOT / "benchmarks" / "testbed").glob("*.so"):  # of 'make build'; some tests need it, and no mutant is in it
        shutil.copy2(str(source), str(COPY / source.relative_to(ROOT)))
    for target in [*COPY.rglob("*.py"), *COPY.rglob("*.p[yx][xdi]")]:
        if target.relative_to(COPY) not in names:
            target.unlink()


def build() -> None:
    """Compile what has changed in the copy."""
    try:
        done = run([str(PYTHONS["mxnet"]), "setup.py", "-q", "build_ext", "--inplace"], COPY, BUILD_LIMIT)
    except subprocess.TimeoutExpired:
        stop(f"mutants: the copy was not built within {BUILD_LIMIT} s")
    if done.returncode:
        print(done.stdout[-5000:])
        stop("mutants: the copy cannot be built, see above")


def check_tests(mutants: Sequence[Mutant]) -> None:
    """The tests of these mutants have to pass without a fault."""
    for environment in sorted({each.environment for each in mutants}):
        tests = sorted({test for each in mutants if each.environment == environment for test in each.tests})
        done = run_tests(environment, tests, LIMIT * len(mutants))
        if done is None or done.returncode:
            print("the time is over" if done is None else done.stdout[-5000:])
            stop("mutants: the tests fail without a fault, see above")


def survivors(mutants: Sequence[Mutant], extension: str) -> List[Mutant]:
    """Plant these, which are all in one compiled extension, or in Python code; print what becomes of each."""
    found = []
    for each in mutants:
        began = time.monotonic()
        path = COPY / each.file
        original = path.read_text()
        path.write_text(original.replace(each.old, each.new))
        try:
            if extension:
                build()
            done = run_tests(each.environment, each.tests, LIMIT)
        finally:
            path.write_text(original)
        survived = done is not None and done.returncode == 0
        found += [each] * survived
        word = "SURVIVED" if survived else "hung" if done is None else "found"  # who hangs, or crashes, is found as well
        by = [line for line in ("" if done is None else done.stdout).splitlines() if line.startswith(("FAILED ", "ERROR "))]
        print(f"{word:8} {time.monotonic() - began:4.0f} s  {each}", *(f"         {line:.200}" for line in by), sep="\n", flush=True)
    if extension:
        build()
    return found


def run_tests(environment: str, tests: Sequence[str], limit: float) -> Optional["subprocess.CompletedProcess[str]"]:
    """pytest's result; None if the time was over."""
    shutil.rmtree(str(COPY / "tests" / ".hypothesis"), ignore_errors=True)  # nothing is known from another mutant
    try:
        return run([str(PYTHONS[environment]), *PYTEST, *tests], COPY / "tests", limit, {"PYTHONPATH": str(COPY), "OMP_NUM_THREADS": "1"})
    except subprocess.TimeoutExpired:
        return None


def run(command: Sequence[str], cwd: Path, limit: float, env: Optional[Dict[str, str]] = None) -> "subprocess.CompletedProcess[str]":
    """The result of a command, with its output. subprocess.TimeoutExpired after ``limit`` seconds: then no process of its group is left."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with subprocess.Popen(
        command,
        cwd=str(cwd),
        env={**own, "PYTHONDONTWRITEBYTECODE": "1", **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, output)


def stop(message: str) -> NoReturn:
    print(message)
    sys.exit(2)


if __name__ == "__main__":
    sys.exit(main())
