"""What a result says of itself: the commit, whether it was changed, when, by which command and on which machine it was made."""

import os
import platform
import shlex
import subprocess
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any, Dict, Mapping, Sequence

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


def describe(module: str, arguments: Sequence[str], framework: str = "MXNet", package: str = "mxnet") -> Dict[str, Any]:
    """The part of a result's metadata that all have: commit, dirty, date, command, machine. ``module`` was run with ``arguments``."""
    try:
        commit, dirty = git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--", *CODE))
    except (OSError, subprocess.CalledProcessError):
        commit, dirty = "unknown", True
    return {
        "commit": commit,
        "dirty": dirty,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(["python", "-m", f"benchmarks.{module}", *arguments]),
        "machine": machine(framework, package),
    }


def machine(framework: str = "MXNet", package: str = "mxnet") -> str:
    """This machine and the versions, in one line."""
    return (
        f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}, "
        f"{framework} {version(package)}, prophet_mx {__version__}"
    )


def made(about: Mapping[str, Any]) -> str:
    """``Commit 0d30d21 with changes, 2026-11-23 04:20 UTC, machine``."""
    changed = " with changes that are in no commit" if about["dirty"] else ""
    return f"Commit {about['commit'][:9]}{changed}, {about['date']}; {about['machine']}."
