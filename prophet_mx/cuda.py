"""CUDA's libraries without an installation of CUDA: those that MXNet's CUDA wheel loads, and where NVIDIA's pip packages have them.

The packages put libraries into ``site-packages/nvidia/*/lib``, where the system's loader does not look. It looks into the folders of
``LD_LIBRARY_PATH``, which it reads when a process starts. So whoever starts the process must set that variable.
"""

import os
import re
import shutil
import subprocess
import sys
from functools import lru_cache
from glob import escape, glob
from importlib.util import find_spec
from typing import Dict, List, Mapping, Optional, Sequence

PATH_VARIABLE = "LD_LIBRARY_PATH"
DRIVER = "libcuda.so.1"  # of NVIDIA's driver, which no package has

# The extra cu112 of pyproject.toml has these requirements. 11.x libraries keep their names; cuDNN 9 and CUDA 12 have others.
LIBRARIES = {
    "libcudart.so.11.0": "nvidia-cuda-runtime-cu11>=11.7,<12",
    "libcublas.so.11": "nvidia-cublas-cu11>=11.10,<12",
    "libcudnn.so.8": "nvidia-cudnn-cu11>=8.5,<9",
    "libcufft.so.10": "nvidia-cufft-cu11>=10.7,<11",
    "libcurand.so.10": "nvidia-curand-cu11>=10.2,<11",
    "libcusolver.so.11": "nvidia-cusolver-cu11>=11.4.1,<12",
    "libnvrtc.so.11.2": "nvidia-cuda-nvrtc-cu11>=11.7,<12",
    "libnccl.so.2": "nvidia-nccl-cu11>=2.13,<3",
    "libnvToolsExt.so.1": "nvidia-nvtx-cu11>=11.7,<12",
}

_PYTHON = re.compile(r"python[\d.]*")
_ASK = "from importlib.util import find_spec as f; s = f('nvidia'); print(*(s.submodule_search_locations if s else ()), sep='\\n')"
_ASK_SECONDS = 20.0


def library_folders(python: str = sys.executable) -> List[str]:
    """The folders with such libraries in the environment of ``python``, a path; none where the packages are not installed."""
    found = [file for root in _package_folders(python) for file in glob(os.path.join(escape(root), "*", "lib", "lib*.so*"))]
    return sorted({os.path.dirname(file) for file in found if os.path.basename(file) in LIBRARIES})


def with_libraries(environ: Mapping[str, str], command: Sequence[str] = ()) -> Dict[str, str]:
    """``LD_LIBRARY_PATH`` for ``command``, as a variable to add to ``environ``; empty if there is nothing to add.

    The folders are those of the Python that the command names, or else of this Python. They come after the variable's own ones, so the
    user's own libraries win.
    """
    own = environ.get(PATH_VARIABLE, "")
    there = set(map(os.path.realpath, own.split(os.pathsep)))
    new = [folder for folder in library_folders(_python_of(command, environ.get("PATH"))) if os.path.realpath(folder) not in there]
    return {PATH_VARIABLE: os.pathsep.join(([own] if own else []) + new)} if new else {}


def _python_of(command: Sequence[str], path: Optional[str]) -> str:
    if command and _PYTHON.fullmatch(os.path.basename(command[0])):
        return shutil.which(command[0], path=path) or sys.executable
    return sys.executable


def _package_folders(python: str) -> Sequence[str]:
    """Where this Python would import ``nvidia`` from."""
    if python != sys.executable:
        return _asked(python)
    spec = find_spec("nvidia")
    return list(spec.submodule_search_locations or ()) if spec else []


@lru_cache(maxsize=None)
def _asked(python: str) -> Sequence[str]:
    try:
        done = subprocess.run([python, "-c", _ASK], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ASK_SECONDS)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return ()  # it will not run the job either
    return done.stdout.splitlines() if done.returncode == 0 else ()
