"""Where things are."""

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
SCRIPTS = TESTS / "jobs" / "scripts"  # what the jobs of tests run
