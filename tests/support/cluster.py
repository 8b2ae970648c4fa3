"""Real jobs of several processes for tests, on top of the launcher that users get."""

import os
import sys
import tempfile
from pathlib import Path
from textwrap import dedent
from typing import Dict, Mapping, Optional, Sequence, Union

import prophet_mx
from prophet_mx.launcher.launch import JobResult, run_job
from support.paths import TESTS

PACKAGE_PATH = str(Path(prophet_mx.__file__).resolve().parents[1])

# Most of the time in which a process of a job starts goes into ``import mxnet``, and a job has four or more. What is in this folder, and
# these settings, leave out of it what no test is about: sklearn and scipy, which MXNet imports where they are installed, as they are for
# the demo; setuptools, which hooks itself into distutils; and compiling the same functions once more.
LIGHT = str(TESTS / "support" / "light")
_compiled = tempfile.TemporaryDirectory(prefix="prophet-test-light-")
LIGHT_ENV = {"LIGHT_CACHE": os.path.join(_compiled.name, "compiled"), "SETUPTOOLS_USE_DISTUTILS": "stdlib"}
ROLE = str(TESTS / "support" / "role.py")


def package_env(extra: Optional[Mapping[str, str]] = None, light: bool = True) -> Dict[str, str]:
    """Environment variables with which a child process imports the very ``prophet_mx`` that this process has imported; ``light``: and
    that start sooner."""
    path = os.pathsep.join(filter(None, [LIGHT if light else "", PACKAGE_PATH, os.environ.get("PYTHONPATH", "")]))
    return {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", **(LIGHT_ENV if light else {}), **(extra or {})}


def run_cluster(
    script: Union[str, Path],
    workers: int = 2,
    servers: int = 1,
    *,
    env: Optional[Mapping[str, str]] = None,
    role_env: Optional[Mapping[str, Mapping[str, str]]] = None,
    args: Sequence[str] = (),
    timeout: float = 60,
    expect: Optional[int] = 0,
    grace: float = 5.0,
    light: bool = True,
) -> JobResult:
    """Run ``script`` (a path, or Python code as a text) as scheduler, servers and workers; return the result with all outputs.

    Fails the test, with the output of every process, unless the job's exit code is ``expect`` (None: any) within ``timeout``
    seconds. All processes have ended when this returns or raises. ``light`` leaves out what takes time and few tests are about:
    packages as :func:`package_env` does, and the script in the scheduler's process.
    """
    with tempfile.TemporaryDirectory(prefix="prophet-test-") as directory:
        if isinstance(script, str):
            path = Path(directory, "script.py")
            path.write_text(dedent(script), encoding="utf-8")
        else:
            path = script
        result = run_job(
            [sys.executable, *([ROLE] if light else []), str(path), *map(str, args)],
            workers,
            servers,
            env=package_env(env, light),
            role_env=role_env,
            timeout=timeout,
            grace=grace,
        )
    if expect is not None and result.exit_code != expect:
        raise AssertionError(f"the job ended with {result.exit_code}, not {expect}\n{result.logs()}")
    return result
