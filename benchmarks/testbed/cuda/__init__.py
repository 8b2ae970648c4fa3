"""The emulated CUDA runtime: builds it, and names the environment of a process that runs on it.

    python -m benchmarks.testbed.cuda        builds it for this Python's mxnet-cu112, and prints the folder

docs/emulated-gpu.md says what is emulated.
"""

import fcntl
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Dict, Optional

from prophet_mx.errors import ProphetError

HERE = Path(__file__).resolve().parent


class EmulationError(ProphetError):
    """The emulated CUDA runtime cannot be built or used here."""


def libmxnet() -> Optional[Path]:
    """The library of this Python's MXNet if it is a build for CUDA. MXNet is not imported: without CUDA's libraries it cannot be."""
    found = find_spec("mxnet")
    for folder in (found.submodule_search_locations or ()) if found else ():
        path = Path(folder, "libmxnet.so")
        if path.exists():
            names = subprocess.run(
                ["readelf", "--dynamic", str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
            ).stdout
            return path if b"libcudart.so" in names else None
    return None


def build() -> Path:
    """Build what has changed, and return the folder for ``LD_LIBRARY_PATH``. Other processes that build it are waited for.

    Raises
    ------
    EmulationError
        this Python has no MXNet for CUDA, or the compiler fails; the message says what it said.
    """
    library = libmxnet()
    if library is None:
        raise EmulationError(f"{sys.executable} has no MXNet for CUDA: install mxnet-cu112==1.9.1 ('make cuda' does, in .venv-cuda)")
    out = Path(sys.prefix, "emulated-cuda")
    out.mkdir(exist_ok=True)
    command = ["make", "--no-print-directory", "-C", str(HERE), f"LIBMXNET={library}", f"OUT={out}"]
    with open(out / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise EmulationError(f"the emulated CUDA runtime could not be built; it needs make, binutils and a C++17 compiler\n{done.stdout}")
    return out


def environment(**settings: object) -> Dict[str, str]:
    """Variables of a process that uses the emulation: ``device="v100", copy_to=5e9`` are EMULATED_CUDA_DEVICE and EMULATED_CUDA_COPY_TO.

    cuDNN has one algorithm here, so that none is searched for. Raises EmulationError.
    """
    path = os.pathsep.join(filter(None, [str(build()), os.environ.get("LD_LIBRARY_PATH")]))
    return {
        "LD_LIBRARY_PATH": path,
        "MXNET_CUDNN_AUTOTUNE_DEFAULT": "0",
        "MXNET_CUDNN_LIB_CHECKING": "0",
        **{f"EMULATED_CUDA_{name.upper()}": str(value) for name, value in settings.items()},
    }
