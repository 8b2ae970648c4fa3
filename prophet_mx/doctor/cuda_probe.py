"""``python -m prophet_mx.doctor.cuda_probe``: what CUDA's libraries and NVIDIA's driver say of themselves, as a line of JSON.

``prophet-mx doctor`` runs it in a process of its own, because the loader reads LD_LIBRARY_PATH when a process starts, and because a driver
can fail in any way. It needs neither MXNet nor the compiled core.

- ``missing``: the libraries that cannot be loaded, each with the loader's words
- ``driver``, ``nvrtc``: the CUDA version of each, as [11, 2]; absent if unknown
- ``gpus``: [name, [major, minor]] of each GPU, with its compute capability
"""

import ctypes
import json
from typing import Any, Dict, List

from ..cuda import DRIVER, LIBRARIES

MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR


def probe() -> Dict[str, Any]:
    """All that is known, under the names above."""
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
        found.update(_driver(loaded[DRIVER]))
    return found


def _driver(cuda: ctypes.CDLL) -> Dict[str, Any]:
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
