"""What is published: the source distribution is complete, builds a wheel, and the wheel imports without MXNet as documented."""

import re
import shutil
import sys
import tarfile
import zipfile

import pytest

from support import commands
from support.paths import ROOT

NOT_SOURCE = shutil.ignore_patterns(
    ".git",
    ".venv",
    ".venv-torch",
    ".venv-cuda",
    ".venv-newer",
    ".mutants",
    "build",
    "dist",
    "*.egg-info",
    "*.so",
    "*.c",
    "__pycache__",
    ".*_cache",
    ".hypothesis",
    ".demo",
)


def run(*command, cwd):
    return commands.run(*command, cwd=cwd, timeout=300, package=False, merged=True, expect=0).stdout


def data_files():
    return {
        str(path.relative_to(ROOT)) for folder in ("*/templates/*", "profiling/models/*") for path in (ROOT / "prophet_mx").glob(folder)
    }


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A directory with ``sdist``, made from a clean copy of the sources, ``wheel``, built from that, and ``venv``, where it is."""
    work = tmp_path_factory.mktemp("package")
    shutil.copytree(str(ROOT), str(work / "source"), ignore=NOT_SOURCE)
    # What a build needs is installed here; that pyproject.toml names it is seen when pip makes the wheel.
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", work / "sdist", ".", cwd=work / "source")
    shutil.rmtree(str(work / "source"))
    run(sys.executable, "-m", "venv", work / "venv", cwd=work)
    pip = [work / "venv/bin/python", "-m", "pip", "--disable-pip-version-check"]
    [sdist] = (work / "sdist").iterdir()
    run(*pip, "wheel", "--no-deps", "--wheel-dir", work / "wheel", sdist, cwd=work)
    [wheel] = (work / "wheel").iterdir()
    run(*pip, "install", "--no-deps", wheel, cwd=work)
    return work


def test_the_sdist_has_what_a_build_needs_and_nothing_that_was_built(published):
    [path] = (published / "sdist").glob("prophet_mx-*.tar.gz")
    with tarfile.open(str(path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = {
        str(path.relative_to(ROOT))
        for folder, patterns in (("prophet_mx", ["*.py", "*.pyi"]), ("_ext", ["*.pyx", "*.pxd"]))
        for pattern in patterns
        for path in (ROOT / folder).rglob(pattern)
    } | data_files()
    assert sources | {"setup.py", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE"} <= names
    assert not [name for name in names if name.endswith((".so", ".c", ".pyc"))]


def test_the_wheel_has_the_compiled_core_and_every_module(published):
    [path] = (published / "wheel").glob("prophet_mx-*.whl")
    with zipfile.ZipFile(str(path)) as archive:
        names = set(archive.namelist())
    units = {path.stem for path in (ROOT / "_ext" / "prophet_mx" / "_core").glob("*.pyx")}
    compiled = [name for name in names if name.endswith(".so")]
    assert {name.partition(".")[0] for name in compiled} == {f"prophet_mx/_core/{unit}" for unit in units}  # and no accelerator
    assert not [name for name in names if name.endswith((".pyx", ".pxd", ".c"))]
    assert {str(module.relative_to(ROOT)) for module in (ROOT / "prophet_mx").rglob("*.py")} == {
        name for name in names if name.endswith(".py")
    }
    assert data_files() <= names
    assert "prophet_mx/py.typed" in names  # so that type checkers read the annotations
    assert [name for name in names if name.endswith("/LICENSE")]


def test_without_mxnet_the_store_says_what_to_install(published):
    done = commands.run(published / "venv/bin/python", "-c", "from prophet_mx import ScheduledKVStore", cwd=published, package=False)
    assert done.returncode != 0
    message = done.stderr.strip().splitlines()[-1]
    assert "MXNetMissingError" in message and "MXNet 1.9.1" in message
    assert "pip install mxnet==1.9.1 'numpy<1.24'" in message and "pip install mxnet-cu112==1.9.1 'numpy<1.24'" in message


def test_a_checkout_that_is_not_compiled_takes_the_compiled_part_of_the_installed_package(published, tmp_path):
    """Python started in a checkout finds that one first."""
    checkout, python = tmp_path / "checkout", published / "venv/bin/python"
    shutil.copytree(str(ROOT / "prophet_mx"), str(checkout / "prophet_mx"), ignore=NOT_SOURCE)
    ask = "from prophet_mx import _core; print(_core.Scheduler.__name__, _core.__file__)"
    done = commands.run(python, "-c", ask, cwd=checkout, package=False, expect=0)
    assert done.stdout.split() == ["Scheduler", str(checkout / "prophet_mx/_core/__init__.py")]
    with open(checkout / "prophet_mx/_core/__init__.pyi", "a") as file:
        file.write("# another version\n")
    done = commands.run(python, "-c", ask, cwd=checkout, package=False, expect=1)
    assert "is of another version: pip install it again" in done.stderr.splitlines()[-1]
    done = commands.run(
        sys.executable, "-I", "-S", "-c", f"import sys; sys.path = [{str(checkout)!r}, *sys.path]; {ask}", package=False, expect=1
    )
    assert "is neither compiled in place nor installed" in done.stderr.splitlines()[-1]


def test_the_console_script(published):
    """With a stand-in for MXNet: the command itself never imports it."""
    (published / "mxnet.py").write_text("raise SystemExit('mxnet was imported')\n")
    for command in ([published / "venv/bin/prophet-mx"], [published / "venv/bin/python", "-m", "prophet_mx"]):
        done = commands.run(*command, "--help", cwd=published, env={"PYTHONPATH": str(published)}, package=False, expect=0)
        assert done.stdout.startswith("usage: prophet-mx") and "launch" in done.stdout


def test_the_version_is_the_same_everywhere(published):
    [wheel] = (published / "wheel").iterdir()
    version = wheel.name.split("-")[1]
    (published / "mxnet.py").write_text("")
    done = commands.run(
        published / "venv/bin/prophet-mx", "--version", cwd=published, env={"PYTHONPATH": str(published)}, package=False, expect=0
    )
    assert done.stdout == f"prophet-mx {version}\n"
    newest = re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest and newest.group(1) == version
