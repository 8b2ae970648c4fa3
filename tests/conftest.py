"""What all tests share: which prophet_mx is tested, an environment without settings from outside, and who runs beside whom."""

import fcntl
import os
import signal
import sys
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Iterator, List, Optional

import pytest

pytest.register_assert_rewrite("support")

import prophet_mx  # noqa: E402
from support import cluster, paths  # noqa: E402

# For benchmarks/. At the end: the checkout's own prophet_mx must not hide the installed one.
sys.path.append(str(paths.ROOT))

from benchmarks.testbed.network import needed_privileges  # noqa: E402

pytest_plugins = ["support.rules"]

if find_spec("mxnet") is None:  # as on Python 3.12 and newer: what is left of the unit tests needs none
    collect_ignore_glob = ["unit/mxnet/*", "unit/benchmarks/*", "unit/monitoring/test_metrics.py", "unit/test_policies.py"]
    collect_ignore_glob += ["unit/test_cuda.py", "unit/doctor/test_cuda.py"]  # of MXNet's CUDA build


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-plans", action="store_true", help="write the golden plans of unit/planning/plans anew")


def pytest_configure(config: pytest.Config) -> None:
    if find_spec("prophet_mx._core.engine") is None:
        raise pytest.UsageError(
            f"prophet_mx in {cluster.PACKAGE_PATH} has no compiled core. 'make test' tests the installed package; to test a "
            "checkout, run 'python setup.py build_ext --inplace' in it and set PYTHONPATH to it"
        )
    for name in list(os.environ):
        if name.startswith(("PROPHET_", "DMLC_", "PS_", "EMULATED_CUDA_")) or name == "PORT":
            del os.environ[name]
    # Behind nohup, or in the background of a script, they are ignored, and would be by all processes of the tests.
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_collection_modifyitems(items: List[pytest.Item]) -> None:
    """A test's folder says what it needs."""
    missing: Optional[str] = None
    for item in items:
        folder = Path(str(item.fspath)).relative_to(paths.TESTS).parts[0]
        if folder in ("jobs", "cuda"):
            item.add_marker(pytest.mark.cluster)
        elif folder == "network":
            missing = needed_privileges() or "" if missing is None else missing  # asked only where it matters
            item.add_marker(pytest.mark.netns)
            item.add_marker(pytest.mark.skipif(missing != "", reason=missing))


def has_cuda_build() -> bool:
    """Whether the MXNet here is the one for CUDA."""
    try:
        distribution("mxnet-cu112")
    except PackageNotFoundError:
        return False
    return True


# Folders of tests that need something which has an environment of its own.
NEEDS = {
    "pytorch": ("PyTorch is", "make test-torch", lambda: find_spec("torch") is not None),
    "cuda": ("MXNet's CUDA build is", "make test-cuda", has_cuda_build),
}


def pytest_report_header(config: pytest.Config) -> List[str]:
    without = [
        f"tests/{folder}: left out, as {what} not installed here ('{target}' installs it)"
        for folder, (what, target, installed) in NEEDS.items()
        if not installed()
    ]
    return [f"prophet_mx {prophet_mx.__version__} in {cluster.PACKAGE_PATH}", *without]


def pytest_ignore_collect(collection_path: Path) -> Optional[bool]:
    """The tests of a folder import what it needs."""
    for folder, (_, _, installed) in NEEDS.items():
        if paths.TESTS / folder in (collection_path, *collection_path.parents) and not installed():
            return True
    return None


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Where several processes run the tests (pytest-xdist), one that is marked ``alone`` runs while no other does. These files are the
    locks: who holds the first waits for the second, so that nobody who comes later gets there before."""
    with open(__file__) as entrance, open(cluster.__file__) as room:
        fcntl.flock(entrance, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        fcntl.flock(entrance, fcntl.LOCK_UN)
        yield
