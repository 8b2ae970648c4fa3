"""The checks of ``prophet-mx doctor`` for MXNet's CUDA wheel: its libraries, the driver, and whether the GPUs can run it.

``python -m prophet_mx.doctor.cuda`` prints what :func:`probe` finds, as a line of JSON. The check runs it in a process of its own, because
the loader reads LD_LIBRARY_PATH when a process starts, and because a driver can fail in any way. It needs neither MXNet nor the core.
"""

import ctypes
import json
import re
from importlib.metadata import distributions
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Tuple

from ..cuda import DRIVER, LIBRARIES, PATH_VARIABLE, with_libraries
from .checks import ERROR, OK, WARNING, Environment, Finding, run_probe

PROBE = "prophet_mx.doctor.cuda"
MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
FIRST, LAST, BEYOND = (5, 0), (8, 6), (9, 0)  # compute capabilities: the wheel has code for the first two; nothing runs from the third on
OLDEST_DRIVER = (11, 0)  # the CUDA version of the oldest driver that all CUDA 11 libraries run with

_CUDA_WHEEL = re.compile(r"mxnet[-_]cu\d+")


def check_cuda(job: Environment) -> Iterator[Finding]:
    """Nothing to say where MXNet's CUDA wheel is not installed."""
    if not any(_CUDA_WHEEL.fullmatch(each.metadata["Name"] or "") for each in distributions()):
        return
    addition = with_libraries(job.environ)
    found = run_probe(PROBE, {**job.environ, **addition})
    if "missing" not in found:
        yield Finding("cuda", ERROR, f"the libraries cannot be examined: {found.get('error', 'no answer')}", "look at the driver's log")
        return
    yield from _libraries(found["missing"])
    if addition:
        yield from _path(job, addition[PATH_VARIABLE])
    yield from _driver(found)
    for name, capability in found["gpus"]:
        yield gpu(name, tuple(capability))


def _libraries(missing: Mapping[str, str]) -> Iterator[Finding]:
    ours = [name for name in LIBRARIES if name in missing]
    if ours:
        packages = " ".join(f"'{LIBRARIES[name]}'" for name in ours)
        yield Finding("cuda", ERROR, f"MXNet cannot load {', '.join(ours)} ({missing[ours[0]]})", f"pip install {packages}")
    else:
        yield Finding("cuda", OK, "all libraries of CUDA 11 that MXNet loads are there")
    if DRIVER in missing:
        what = f"MXNet cannot load {DRIVER} of NVIDIA's driver, which no pip package has"
        yield Finding("driver", ERROR, what, "install the driver; in a container, start it with --gpus all; or use the CPU wheel")


def _path(job: Environment, value: str) -> Iterator[Finding]:
    """The libraries are in folders of pip packages, which this environment does not name."""
    status = ERROR if "DMLC_ROLE" in job.environ else WARNING  # prophet-mx launch has not started this process
    found = "CUDA's libraries are in folders of pip packages: 'prophet-mx launch' names them, other starts of Python do not"
    yield Finding("cuda_path", status, found, f"without the launcher: export {PATH_VARIABLE}={value}")


def _driver(found: Dict[str, Any]) -> Iterator[Finding]:
    if "driver" not in found:
        return
    driver, compiler = tuple(found["driver"]), tuple(found.get("nvrtc", OLDEST_DRIVER))
    if driver < OLDEST_DRIVER:
        yield Finding("driver", ERROR, f"it is for CUDA {_version(driver)}: too old for CUDA 11", "install driver 450.80.02 or newer")
    elif driver < compiler:
        yield Finding(
            "driver",
            WARNING,
            f"it is for CUDA {_version(driver)}, but libnvrtc.so.11.2 is of {_version(compiler)}: it refuses what that compiles for "
            "MXNet's fused operators",
            "install a newer driver, or set MXNET_USE_FUSION=0",
        )
    else:
        yield Finding("driver", OK, f"for CUDA {_version(driver)}")


def gpu(name: str, capability: Tuple[int, ...]) -> Finding:
    """Whether MXNet's CUDA wheel can run on a GPU.

    It has machine code for 5.0, 6.0, 7.0, 8.0 and 8.6, and no PTX from which a driver could make other code. Machine code also runs on GPUs
    with the same major number and a higher minor one.
    """
    shown = f"{name}, compute capability {_version(capability)}"
    if FIRST <= capability <= LAST:
        return Finding("gpu_code", OK, shown)
    if LAST < capability < BEYOND:
        return Finding("gpu_code", WARNING, f"{shown}: it runs the code for {_version(LAST)}, which nobody has tried here")
    what = f"{shown}: MXNet's CUDA wheel has machine code for {_version(FIRST)} to {_version(LAST)} and no PTX, so it cannot run there"
    return Finding("gpu_code", ERROR, what, "use another GPU, or hide this one with CUDA_VISIBLE_DEVICES, or use the CPU wheel")


def _version(parts: Sequence[int]) -> str:
    return ".".join(map(str, parts))


def probe() -> Dict[str, Any]:
    """What CUDA's libraries and NVIDIA's driver say of themselves.

    - ``missing``: the libraries that cannot be loaded, each with the loader's words
    - ``driver``, ``nvrtc``: the CUDA version of each, as [11, 2]; absent if unknown
    - ``gpus``: [name, [major, minor]] of each GPU, with its compute capability
    """
    loaded, missing = {}, {}
    for name in (*LIBRARIES, DRIVER):
        try:
            loaded[name] = ctypes.CDLL(name)
        except OSError as error:
            missing[name] = str(error)
    found: Dict[str, Any] = {"missing": missing, "gpus": []}
    if "libnvrtc.so.11.2" in loaded:
        major, minor = ctypes.c_int(), ctypes.c_int()
        if loaded["libnvrtc.so.11.2"].nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)) == 0:
            found["nvrtc"] = [major.value, minor.value]
    if DRIVER in loaded:
        found.update(_probe_driver(loaded[DRIVER]))
    return found


def _probe_driver(cuda: ctypes.CDLL) -> Dict[str, Any]:
    version, count, gpus = ctypes.c_int(), ctypes.c_int(), []
    found: Dict[str, Any] = {}
    if cuda.cuDriverGetVersion(ctypes.byref(version)) == 0:
        found["driver"] = [version.value // 1000, version.value % 1000 // 10]
    if cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0:
        gpus = [_gpu(cuda, number) for number in range(count.value)]
    return {**found, "gpus": gpus}


def _gpu(cuda: ctypes.CDLL, number: int) -> List[Any]:
    device, name, value, capability = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_int(), []
    cuda.cuDeviceGet(ctypes.byref(device), number)
    cuda.cuDeviceGetName(name, len(name), device)
    for attribute in (MAJOR, MINOR):
        cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        capability.append(value.value)
    return [name.value.decode("utf-8", "replace"), capability]


if __name__ == "__main__":
    print("\n" + json.dumps(probe()))
