"""What the processes of a job have in their environment, wherever they run, besides what the user says."""

import os
from typing import Dict, List, Mapping, Optional

from ..errors import LaunchError, not_allowed
from . import bootstrap

# A server waits for each operation before it answers: MXNet's threaded engine only hands every message through two more threads. Without
# them a message takes three fifths of the time (two workers and a server on two cores). A worker must not wait: it needs that engine.
SERVER_ENGINE = {"MXNET_ENGINE_TYPE": "NaiveEngine"}

FOLDER = os.path.dirname(os.path.abspath(bootstrap.__file__))  # of the hook of --schedule
GPU_VARIABLE = "CUDA_VISIBLE_DEVICES"  # which GPUs a process sees; it counts them from 0


def gpu_shares(workers: int, count: int, given: Optional[str]) -> List[str]:
    """The ``GPU_VARIABLE`` of each of a host's ``workers``: ``count`` GPUs that no other of them sees.

    ``given`` is the variable's own value, a list of the GPUs that may be used; with None they are taken from 0 on.

    >>> gpu_shares(2, 2, None), gpu_shares(2, 1, "4,6")
    (['0,1', '2,3'], ['4', '6'])

    Raises LaunchError if ``given`` has too few GPUs.
    """
    needed = workers * count
    names = [str(gpu) for gpu in range(needed)] if given is None else [name for name in given.split(",") if name.strip()]
    if len(names) < needed:
        why = f" for {workers} worker(s) on a host with {GPU_VARIABLE}={given}"
        raise LaunchError(not_allowed(f"--gpus-per-worker {count}", f"a list of at least {needed} GPUs, or fewer workers", why))
    return [",".join(names[first : first + count]) for first in range(0, needed, count)]


def defaults(environ: Mapping[str, str], workers: int, role: str) -> Dict[str, str]:
    """Variables that are set for a process of this ``role`` unless ``environ`` has them. ``workers`` share this machine."""
    # Their output is a pipe: without this a Python program's lines would appear long after they were printed.
    values = {
        "PYTHONUNBUFFERED": "1",
        # OpenMP's default, all cores for each worker, makes them spin in each other's way.
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // workers)),
    }
    if role == "server":
        values.update(SERVER_ENGINE)
    return {name: environ.get(name, value) for name, value in values.items()}


def with_hook(env: Mapping[str, str]) -> Dict[str, str]:
    """``env`` with ``prophet_mx/launcher/bootstrap`` first on ``PYTHONPATH``: Python runs the ``sitecustomize`` that is in there.

    That works for ``python train.py``, for ``python -m package`` and for what these start, but not for a Python that ignores its
    environment (``-E``, ``-I``) or leaves out ``site`` (``-S``).
    """
    rest = [folder for folder in env.get("PYTHONPATH", "").split(os.pathsep) if folder and folder != FOLDER]
    return {**env, "PYTHONPATH": os.pathsep.join([FOLDER] + rest)}
