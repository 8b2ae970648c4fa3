"""The Dockerfile, as far as it can be checked without a container engine."""

import os
import re
import shutil
import subprocess

import pytest

from prophet_mx.cuda import LIBRARIES
from support.paths import ROOT

INSTRUCTION = re.compile(r"(ARG|FROM|ENV|RUN|USER|WORKDIR|COPY|CMD) +(.*)", re.DOTALL)


def parse(text):
    """The instructions as (name, arguments), continuation lines joined."""
    lines = "".join(line for line in text.splitlines(True) if not line.startswith("#"))
    found = []
    for logical in re.split(r"(?<!\\)\n", lines):
        if logical.strip():
            match = INSTRUCTION.fullmatch(logical.strip())
            assert match, f"not an instruction that this image needs: {logical!r}"
            found.append(match.groups())
    return found


DOCKERFILE = parse((ROOT / "Dockerfile").read_text(encoding="utf-8"))


def all_of(name):
    return [arguments for instruction, arguments in DOCKERFILE if instruction == name]


def packages():
    [install] = [run for run in all_of("RUN") if "apt-get install" in run]
    words = re.search(r"apt-get install ([^&|;]*)", install.replace("\\\n", " ")).group(1).split()
    return [word for word in words if not word.startswith("-")]


def extras_of(project):
    """name -> its requirements, as they are written. Python itself reads TOML from 3.11 on only."""
    text = project.read_text(encoding="utf-8")
    [table] = re.findall(r"^\[project\.optional-dependencies\]\n(.*?)^\[", text, re.MULTILINE | re.DOTALL)
    return dict(re.findall(r"^(\w+) = (.*(?:\n .*)*)", table, re.MULTILINE))


def test_the_base_and_mxnet_are_build_arguments_with_mxnet_for_cuda_as_the_default():
    arguments = dict(argument.partition("=")[::2] for argument in all_of("ARG"))
    assert all_of("FROM") == ["${BASE}"] and arguments["BASE"] == "ubuntu:20.04"
    assert arguments["MXNET"] == "cu112"
    extras = extras_of(ROOT / "pyproject.toml")
    used = set(re.findall(r"MXNET=(\w+)", (ROOT / "Dockerfile").read_text(encoding="utf-8")))
    assert used == {"cu112", "cpu"}
    for extra in used:
        assert extras[extra].startswith('["mxnet')
    for name in re.findall(r"\$\{?(\w+)", " ".join(argument for _, argument in DOCKERFILE)):
        assert name in arguments or name in os.environ or name in ("PATH", "HOME", "NVIDIA"), f"{name} is set nowhere"


def test_every_process_finds_the_libraries_of_nvidias_packages():
    values = dict(word.partition("=")[::2] for line in all_of("ENV") for word in line.replace("\\\n", "").split())
    folders = values["LD_LIBRARY_PATH"].replace("${NVIDIA}", values["NVIDIA"]).split(":")
    parts = [requirement.partition("-cu11")[0].partition("-")[2].replace("-", "_") for requirement in LIBRARIES.values()]
    assert sorted(folders) == sorted(f"/opt/prophet_mx/.venv/nvidia/{part}/lib" for part in parts)
    assert all_of("WORKDIR") == ["/opt/prophet_mx"] and any(
        run.endswith("cd .venv && ln -s lib/python3*/site-packages/nvidia nvidia") for run in all_of("RUN")
    )
    assert "compute" in values["NVIDIA_DRIVER_CAPABILITIES"]


def test_the_extra_for_cuda_brings_each_library_once():
    brought = re.findall(r'"(nvidia-[^"]+)"', extras_of(ROOT / "pyproject.toml")["cu112"])
    assert sorted(brought) == sorted(LIBRARIES.values())


def test_the_makefile_installs_what_the_argument_says():
    make = shutil.which("make") or pytest.skip("needs make")
    text = subprocess.run(
        [make, "-s", "-f", "Makefile", "-f", "-", "shown"],
        cwd=str(ROOT),
        env={"PATH": os.environ["PATH"], "MXNET": "cu112"},
        input="shown:\n\t@echo $(EXTRAS)\n",
        stdout=subprocess.PIPE,
        text=True,
        timeout=30,
    ).stdout
    extras = text.split()[0].split(",")
    assert extras[0] == "cu112" and "cpu" not in extras
    assert set(extras) <= set(extras_of(ROOT / "pyproject.toml"))


def test_every_command_is_a_shell_script_that_parses():
    for run in all_of("RUN"):
        for shell in ("bash", "sh"):
            done = subprocess.run([shell, "-n", "-c", run], stderr=subprocess.PIPE, text=True, timeout=30)
            assert done.returncode == 0, f"{run}\n{done.stderr}"
        assert ";" not in run  # with '&&' a failed step fails the build
    assert all_of("CMD") == ['["prophet-mx", "doctor"]']


def test_what_is_copied_exists_and_nothing_built_is():
    copies = [[word for word in copy.split() if not word.startswith("--")] for copy in all_of("COPY")]
    assert copies
    for *sources, _ in copies:
        assert sources and all((ROOT / source).exists() for source in sources)
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert ".git" in ignored
    for pattern in (ROOT / ".gitignore").read_text(encoding="utf-8").split():
        assert pattern.strip("/") in [name.replace("**/", "") for name in ignored], f"{pattern} of .gitignore would be copied"
    for needed in (
        "Makefile",
        "setup.py",
        "prophet_mx",
        "_ext",
        "tests",
        "docs",
        "mkdocs.yml",
        "README.md",
        "MANIFEST.in",
        "pyproject.toml",
        "LICENSE",
    ):
        assert needed not in ignored


def test_packages_are_those_that_the_installer_names():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    named = re.search(r"for pair in ([^;]+);", script).group(1).split()
    # Ubuntu has chromium only as a snap, which no image can install: the report's test in a browser is skipped there.
    # g++ is for the emulated CUDA runtime alone, on which no image runs.
    assert named and not {pair.partition(":")[2] for pair in named} - set(packages()) - {"chromium", "g++"}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    hinted = set(re.findall(r"apt-get install ([\w.-]+)\)", makefile))
    assert hinted and not hinted - set(packages())
    assert "make" in packages()


def test_packages_exist():
    """In this system's lists, which are not those of the image: names seldom change."""
    if shutil.which("apt-cache") is None:
        pytest.skip("needs apt-cache")
    policy = subprocess.run(
        ["apt-cache", "policy", *packages()], stdout=subprocess.PIPE, text=True, timeout=60, env={**os.environ, "LC_ALL": "C"}
    ).stdout
    known = {
        name
        for name, candidate in re.findall(r"^(\S+):\n  Installed: .*\n  Candidate: (\S+)", policy, re.MULTILINE)
        if candidate != "(none)"
    }
    if not known:
        pytest.skip("apt has no package lists here")
    assert set(packages()) <= known


def test_it_runs_as_a_user_who_owns_the_folder():
    names = [name for name, _ in DOCKERFILE]
    [user] = all_of("USER")
    assert user not in ("root", "0") and any(f"useradd --create-home --uid 1000 {user}" in run for run in all_of("RUN"))
    [folder] = all_of("WORKDIR")
    assert any(f"install -d -o {user} -g {user} {folder}" in run for run in all_of("RUN")[: names.index("USER")])
    assert all(f"--chown={user}:{user}" in copy for copy in all_of("COPY"))
    after = [arguments for name, arguments in DOCKERFILE[names.index("USER") :] if name == "RUN"]
    assert after and any("make build" in run for run in after) and not any("apt-get" in run for run in after)
    [path] = [argument for argument in all_of("ENV") if argument.startswith("PATH=")]
    assert path.startswith(f"PATH={folder}/.venv/bin:")


def test_a_broken_file_would_be_seen():
    for text in ("FROM a\nINSTALL gcc\n", "FROM a\nRUN\n"):
        with pytest.raises(AssertionError):
            parse(text)
