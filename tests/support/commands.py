"""How tests run a command to its end: as a process, or as a function of their own process, which takes a second less."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, Callable, Mapping, Optional

from prophet_mx.cli.main import main
from support.cluster import package_env

LIMIT = 60  # seconds for a command; alone on the machine it takes a tenth of that


def run(
    *command: Any,
    env: Optional[Mapping[str, str]] = None,
    cwd: Any = None,
    package: bool = True,
    light: bool = True,
    merged: bool = False,
    expect: Optional[int] = None,
    timeout: float = LIMIT,
) -> "subprocess.CompletedProcess[str]":
    """Run a command with this process's environment and ``env``; it has nothing to read from.

    ``package``: it imports the ``prophet_mx`` that is tested; ``light``: and starts sooner, see :func:`support.cluster.package_env`.
    ``merged`` puts what it writes to stderr into its stdout. If ``expect`` is not its exit code, the test fails with what it wrote.
    """
    words = [str(word) for word in command]
    done = subprocess.run(
        words,
        env={**os.environ, **(package_env(env, light) if package else env or {})},
        cwd=cwd,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if merged else subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    )
    if expect is not None and done.returncode != expect:
        raise AssertionError(f"{' '.join(words)}\nended with {done.returncode}, not {expect}\n{done.stdout}{done.stderr or ''}")
    return done


def python(*arguments: Any, **options: Any) -> "subprocess.CompletedProcess[str]":
    """:func:`run` with this Python."""
    return run(sys.executable, *arguments, **options)


def prophet_mx(*arguments: Any, **options: Any) -> "subprocess.CompletedProcess[str]":
    """:func:`run` with the command ``prophet-mx``, which a checkout does not have as a script."""
    return python("-m", "prophet_mx", *arguments, **options)


def call(function: Callable[..., Any], *arguments: Any) -> "subprocess.CompletedProcess[str]":
    """What the ``main`` of a command does with the arguments, in this process."""
    words, output, errors = [str(word) for word in arguments], io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        try:
            code = function(words)
        except SystemExit as ended:
            code = ended.code
    return subprocess.CompletedProcess(words, code, output.getvalue(), errors.getvalue())


def cli(*arguments: Any) -> "subprocess.CompletedProcess[str]":
    """What ``prophet-mx`` does with the arguments, in this process."""
    return call(main, *arguments)
