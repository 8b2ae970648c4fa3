"""What prophet-mx doctor finds of the libraries, the driver and the GPUs that MXNet's CUDA wheel needs. All of them are stand-ins."""

import ctypes
from pathlib import Path

import pytest

from prophet_mx.cuda import LIBRARIES
from prophet_mx.doctor.checks import ERROR, OK, WARNING, Environment
from prophet_mx.doctor.cuda import check_cuda, gpu
from support.cluster import package_env
from support.cuda import packages, wheel, working
from support.doctor import JOB, only


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of packages of this Python that has MXNet's CUDA wheel."""
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    wheel(tmp_path / "site")
    return tmp_path / "site"


def found(**environ):
    """check -> its findings."""
    by_check = {}
    for finding in check_cuda(Environment({**package_env(), **environ})):
        by_check.setdefault(finding.check, []).append(finding)
    return by_check


@pytest.fixture
def no_cuda():
    """The system's loader finds none of the libraries by itself."""
    for name in LIBRARIES:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        pytest.skip(f"this machine has {name}")


def test_without_the_wheel_there_is_nothing_to_say(monkeypatch):
    monkeypatch.setattr("prophet_mx.doctor.cuda.distributions", list)
    assert found() == {}


def test_every_library_that_is_missing_is_named_with_its_package(site, no_cuda):
    (lost,) = found()["cuda"]
    assert lost.status == ERROR and all(name in lost.found for name in LIBRARIES)
    assert lost.do == "pip install " + " ".join(f"'{requirement}'" for requirement in LIBRARIES.values())
    (driver,) = found()["driver"]
    assert driver.status == ERROR and "libcuda.so.1" in driver.found and "no pip package" in driver.found and "--gpus all" in driver.do
    assert set(found()) == {"cuda", "driver"}


def test_one_library_that_is_missing(site, no_cuda, tmp_path):
    folders = packages(site, without=["libnccl.so.2"])
    driver = working(tmp_path, [file for folder in folders for file in Path(folder).iterdir()])
    shown = found(LD_LIBRARY_PATH=driver)
    (lost,) = shown["cuda"]
    assert lost.status == ERROR and "cannot load libnccl.so.2 (" in lost.found and lost.do == "pip install 'nvidia-nccl-cu11>=2.13,<3'"
    assert only(shown["driver"]).status == OK


def test_a_machine_that_can_train_is_told_the_line_to_export(site, tmp_path):
    folders = packages(site)
    gpus = [("Tesla V100", (7, 0)), ("H100", (9, 0))]
    driver = working(tmp_path, [file for folder in folders for file in Path(folder).iterdir()], gpus)
    shown = found(LD_LIBRARY_PATH=driver)
    assert only(shown["cuda"]).status == only(shown["driver"]).status == OK
    assert [(one.status, one.found.partition(":")[0]) for one in shown["gpu_code"]] == [
        (OK, "Tesla V100, compute capability 7.0"),
        (ERROR, "H100, compute capability 9.0"),
    ]
    line = ":".join([driver, *folders])
    (path,) = shown["cuda_path"]
    assert (path.status, path.do) == (WARNING, f"without the launcher: export LD_LIBRARY_PATH={line}")
    (path,) = found(LD_LIBRARY_PATH=driver, **JOB)["cuda_path"]
    assert path.status == ERROR  # a process of a job, which something else has started without that line
    assert "cuda_path" not in found(LD_LIBRARY_PATH=line)


@pytest.mark.parametrize(
    "version, status, words, do",
    [
        (11080, OK, "for CUDA 11.8", ""),
        (12040, OK, "for CUDA 12.4", ""),
        (11040, WARNING, "for CUDA 11.4, but libnvrtc.so.11.2 is of 11.8", "MXNET_USE_FUSION=0"),
        (10020, ERROR, "for CUDA 10.2: too old", "450.80.02"),
    ],
)
def test_drivers(site, tmp_path, version, status, words, do):
    driver = working(tmp_path, [file for folder in packages(site) for file in Path(folder).iterdir()], driver=version)
    finding = only(found(LD_LIBRARY_PATH=driver)["driver"])
    assert finding.status == status and words in finding.found and do in finding.do


@pytest.mark.parametrize(
    "capability, status",
    [((3, 7), ERROR), ((5, 0), OK), ((6, 1), OK), ((7, 5), OK), ((8, 6), OK), ((8, 9), WARNING), ((9, 0), ERROR), ((10, 0), ERROR)],
)
def test_gpus_that_the_wheel_can_run_on(capability, status):
    finding = gpu("A GPU", capability)
    assert finding.status == status and "A GPU, compute capability " + ".".join(map(str, capability)) in finding.found
    assert status != ERROR or ("5.0 to 8.6 and no PTX" in finding.found and "CPU wheel" in finding.do)
