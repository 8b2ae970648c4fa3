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


USER = """
from typing import List
from prophet_mx import ScheduledKVStore
from prophet_mx.metrics import Stats

def names(kv: ScheduledKVStore) -> List[str]:
    found: List[str] = []
    for step in kv.stats()["steps"]:
        found += step
    stats: Stats = kv.stats()
    print(stats["WRONG"])
    return found + [f"{stats['first_wait']:.3f}"]
"""


def test_a_program_that_reads_statistics_is_checked_strictly(tmp_path):
    pytest.importorskip("mypy", reason="needs the extra check")
    script = tmp_path / "user.py"
    script.write_text(USER)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--ignore-missing-imports", script],
        timeout=300,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 1 and 'TypedDict "Stats" has no key "WRONG"' in errors[0], done.stdout
