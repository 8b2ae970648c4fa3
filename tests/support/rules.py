"""Rules for a run of the tests: what is random can be done again, and in CI a test is skipped for few reasons only."""

import os
import random
import re
from typing import Any, Iterator

import pytest
from hypothesis import settings

SEED = "--hypothesis-seed"
# What may be lacking in CI: what the project cannot bring along. .ci/run names in CI_WITHOUT the Debian packages that it could not install.
ALLOWED = ("needs atheris", "the testbed needs", "sshd lets ", "needs apt-cache", "apt has no package lists", "there is no GPU")

# Packages that train with PyTorch. CI_WITHOUT has "frameworks" if pip could not get them.
FRAMEWORKS = ("accelerate", "transformers", "lightning", "lion_pytorch")

# Shared machines pause a process for longer than hypothesis' deadline; a slow example is no failure here.
settings.register_profile("prophet_mx", deadline=None, print_blob=True)
settings.load_profile("prophet_mx")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """One seed for all: hypothesis takes it from its option, and the processes of pytest-xdist get the option."""
    if config.getoption(SEED) is None:
        config.option.hypothesis_seed = str(random.randrange(2**32))
    # pytest-xdist would begin with the files of most tests, and end with those of few but long ones: unit tests are best at the end.
    config.option.loadscopereorder = False


def pytest_report_header(config: pytest.Config) -> str:
    return f"to draw the same random numbers: {SEED}={config.getoption(SEED)}"


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Random numbers of a test's own."""
    return random.Random(f"{request.config.getoption(SEED)} {request.node.nodeid}")


def allowed(reason: str) -> bool:
    """Whether a test may be skipped in CI for this reason."""
    lacking = os.environ.get("CI_WITHOUT", "").split()
    packages = re.findall(r"[\w.-]+", reason.partition("apt-get install ")[2])
    if "frameworks" in lacking and any(name in reason for name in FRAMEWORKS):
        return True
    return any(part in reason for part in ALLOWED) or not {*packages}.isdisjoint(lacking)


def check(report: Any) -> None:
    """A test, or a file of tests, that was skipped in CI for another reason has failed."""
    if os.environ.get("CI") and report.outcome == "skipped" and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not allowed(reason):
            report.outcome = "failed"
            report.longrepr = f"in CI no test may be skipped for this reason ({__name__}.ALLOWED): {reason}"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    outcome = yield
    check(outcome.get_result())


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    outcome = yield
    check(outcome.get_result())
