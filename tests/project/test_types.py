"""Types: what is declared of the compiled core is what was compiled."""

import subprocess
import sys

import pytest


def test_the_declared_core_is_the_compiled_one():
    pytest.importorskip("mypy", reason="needs the extra check")
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "--concise", "--ignore-missing-stub", "prophet_mx._core"],
        timeout=300,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
