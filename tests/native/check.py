"""Builds prophet_mx with sanitizers, apart from the ordinary build, and runs the scheduler's stress and the engine's under each.

usage: check.py [KIND ...] [--rounds N] [--iterations N] [--only-build]       kinds: address thread valgrind (default: all that work)

address     AddressSanitizer and UndefinedBehaviourSanitizer, then leaks of memory that our own code allocated
thread      ThreadSanitizer: data races and lock orders
valgrind    Memcheck on a build without sanitizers: uninitialised values, which the others do not see; a smaller run

Exit code 0: nothing was found; 1: something was, as printed; 2: a tool is missing. What is suppressed, and why, is in the files
thread.supp and valgrind.supp beside this one.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, Optional

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
KINDS = {"address": "address,undefined", "thread": "thread", "valgrind": "none"}
LIBRARIES = {"address": ["libasan.so", "libubsan.so"], "thread": ["libtsan.so"], "valgrind": []}
MEMCHECK = ["valgrind", "--error-exitcode=99", f"--suppressions={HERE / 'valgrind.supp'}", "--num-callers=30"]
LIMIT = 1500  # seconds for one command


def missing(kind: str) -> str:
    """What this machine lacks for a kind of check, or ''."""
    compiler = shutil.which("gcc")
    if compiler is None:
        return "gcc is not installed"
    if kind == "valgrind":
        if not shutil.which("valgrind"):
            return "valgrind is not installed (Debian: apt-get install valgrind)"
        # It finds fault with some builds of Python as soon as a module makes a number of bytes.
        plain = MEMCHECK + [sys.executable, "-c", "import ipaddress"]
        found = subprocess.run(plain, env=environment(kind, ROOT), stderr=subprocess.DEVNULL).returncode
        return "valgrind finds errors in this Python itself, without prophet_mx" if found else ""
    for library in LIBRARIES[kind]:
        if not os.path.isabs(path_of(library)):
            return f"gcc has no {library}"
    return ""


def path_of(library: str) -> str:
    """Where gcc has a library; the name itself if it has none."""
    return subprocess.check_output(["gcc", "-print-file-name=" + library], universal_newlines=True).strip()


def build(kind: str) -> Path:
    """The folder from which the build of a kind can be imported."""
    base = ROOT / "build" / f"native-{kind}"
    env = {**os.environ, "SANITIZE": KINDS[kind]}
    run([sys.executable, "setup.py", "-q", "build", "--build-base", str(base), "--build-lib", str(base / "lib")], env, cwd=ROOT)
    return base / "lib"


def environment(kind: str, library: Path) -> Dict[str, str]:
    """Of a process that runs the build. The interpreter is not built with sanitizers, so they are loaded before it."""
    env = {**os.environ, "PYTHONPATH": str(library), "PYTHONMALLOC": "malloc", "OMP_NUM_THREADS": "1"}
    if LIBRARIES[kind]:
        env["LD_PRELOAD"] = " ".join(map(path_of, LIBRARIES[kind]))
    env["ASAN_OPTIONS"] = "detect_leaks=0:detect_stack_use_after_return=1:strict_string_checks=1:allocator_may_return_null=1"
    env["UBSAN_OPTIONS"] = "halt_on_error=1:print_stacktrace=1"
    # MXNet and numpy are not built with it: only what our own code does is looked at.
    env["TSAN_OPTIONS"] = f"halt_on_error=1:ignore_noninstrumented_modules=1:suppressions={HERE / 'thread.supp'}"
    return env


def run(command: List[str], env: Dict[str, str], cwd: Path = HERE) -> str:
    """The output of a command; SystemExit with it if it fails."""
    done = subprocess.run(
        command,
        env=env,
        cwd=str(cwd),
        timeout=LIMIT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode != 0:
        print(done.stdout[-20000:])
        print(f"check-native: {' '.join(command)}: ended with {done.returncode}")
        sys.exit(1)
    return done.stdout


def own_leaks(report: str) -> List[str]:
    """The leaks in LeakSanitizer's report that our code allocated itself. Python keeps many objects until the process ends: those are
    its own business."""
    return [leak for leak in re.split(r"\n\n", report) if re.search(r"#0 .*\n\s+#1 .*/prophet_mx/_core/", leak)]


def check(kind: str, rounds: int, iterations: int) -> None:
    """Build and run everything of one kind."""
    library = build(kind)
    env = environment(kind, library)
    stress, engine = [sys.executable, str(HERE / "stress.py")], [sys.executable, str(HERE / "engine.py")]
    if kind == "valgrind":
        print(run(MEMCHECK + stress + [str(max(2, rounds // 20))], env).splitlines()[-1])
        return
    report(run(stress + [str(rounds)], env), library)
    if kind == "address":
        output = run(stress + [str(max(4, rounds // 10)), "2"], {**env, "ASAN_OPTIONS": "detect_leaks=1", "LSAN_OPTIONS": "exitcode=0"})
        leaks = own_leaks(output)
        if leaks:
            print("\n\n".join(leaks))
            sys.exit(1)
    if iterations:
        report(run(engine + [str(iterations)], env), library)


def report(output: str, library: Path) -> None:
    """Print what was run, and make sure that it was the build in question."""
    lines = [line for line in output.splitlines() if line.startswith(("stress:", "engine:"))]
    if len(lines) != 1 or str(library) not in lines[0]:
        print(output)
        sys.exit("check-native: the wrong build was run")
    print("  " + lines[0])


def main(argv: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"one or more of {', '.join(KINDS)} (default: all)")
    parser.add_argument("--rounds", type=int, default=400, help="of random events (default: 400; valgrind: a twentieth)")
    parser.add_argument("--iterations", type=int, default=100, help="on MXNet's engine; 0: without MXNet (default: 100)")
    parser.add_argument("--only-build", action="store_true", help="build, and run nothing")
    arguments = parser.parse_args(argv)
    unknown = [kind for kind in arguments.kinds if kind not in KINDS]
    if unknown:
        parser.error(f"{unknown[0]!r} is not allowed; allowed: {', '.join(KINDS)}")
    for kind in arguments.kinds or KINDS:
        reason = missing(kind)
        if reason:
            print(f"check-native: {kind}: not run, {reason}")
            if arguments.kinds:
                return 2
            continue
        print(f"check-native: {kind}", flush=True)
        if arguments.only_build:
            build(kind)
        else:
            check(kind, arguments.rounds, arguments.iterations)
    return 0


if __name__ == "__main__":
    sys.exit(main())
