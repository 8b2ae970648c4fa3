"""What a result says of itself: the commit, whether it was changed, when, by which command and on which machine it was made."""

import hashlib
import os
import platform
import re
import shlex
import subprocess
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence

from prophet_mx import __version__

ROOT = Path(__file__).resolve().parents[2]
CODE = (
    "prophet_mx",
    "_ext",
    "benchmarks",
    "examples/mxnet-image-classification",
    ":(exclude)benchmarks/results",
)  # what can alter a result


def git(*arguments: str, root: Path = ROOT) -> str:
    """What git prints. CalledProcessError if it fails, OSError if there is none."""
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def fingerprint(paths: Sequence[str], root: Path = ROOT) -> str:
    """Of the files under ``paths`` as git would commit them: the same whatever the history is. '' if git cannot tell."""
    try:
        return hashlib.sha1(git("ls-files", "--stage", "--", *paths, root=root).encode()).hexdigest()
    except (OSError, subprocess.CalledProcessError):
        return ""


def describe(module: str, arguments: Sequence[str], framework: str = "MXNet", package: str = "mxnet") -> Dict[str, Any]:
    """The part of a result's metadata that all have: commit, dirty, date, command, machine, and the fingerprint of all code. ``module`` was
    run with ``arguments``."""
    try:
        commit, dirty = git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--", *CODE))
    except (OSError, subprocess.CalledProcessError):
        commit, dirty = "unknown", True
    return {
        "commit": commit,
        "dirty": dirty,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(["python", "-m", f"benchmarks.{module}", *_to_repeat(arguments)]),
        "machine": machine(framework, package),
        "code": fingerprint(CODE),
    }


# Options of where files are and of parts of a run, which whoever repeats it does not need; with and without a value.
_OF_A_RUN, _FLAGS_OF_A_RUN = ("--name", "--results", "--published", "--lock", "--until"), ("--resume",)


def _to_repeat(arguments: Sequence[str]) -> List[str]:
    """Those that someone else would give."""
    words = iter(arguments)
    found = []
    for word in words:
        if word in _OF_A_RUN:
            next(words, None)
        elif word not in _FLAGS_OF_A_RUN:
            found.append(word)
    return found


def machine(framework: str = "MXNet", package: str = "mxnet") -> str:
    """This machine and the versions, in one line."""
    return (
        f"{os.cpu_count()} cores{_processor()}, Linux {platform.release()}, Python {platform.python_version()}, "
        f"{framework} {version(package)}, prophet_mx {__version__}"
    )


def _processor() -> str:
    """`` (MODEL at GHz)``, as far as Linux tells."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    model = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    clock = re.search(r"^cpu MHz\s*: ([0-9.]+)$", text, re.MULTILINE)
    return f" ({model[1]}{f' at {float(clock[1]) / 1000:.1f} GHz' if clock else ''})" if model else ""


def made(about: Mapping[str, Any]) -> str:
    """``Commit 0d30d21 with changes, 2026-11-23 04:20 UTC, machine``."""
    changed = " with changes that are in no commit" if about["dirty"] else ""
    return f"Commit {about['commit'][:9]}{changed}, {about['date']}; {about['machine']}."
