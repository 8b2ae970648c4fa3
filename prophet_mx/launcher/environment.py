"""What the processes of a job have in their environment, wherever they run, besides what the user says."""

import os
from typing import Dict, Mapping

LISTEN_VARIABLE = "PORT"  # removed: ps-lite would take it as the port that every process has to listen on


# A server waits for each operation before it answers: MXNet's threaded engine only hands every message through two more threads. Without
# them a message takes three fifths of the time (two workers and a server on two cores). A worker must not wait: it needs that engine.
SERVER_ENGINE = {"MXNET_ENGINE_TYPE": "NaiveEngine"}


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
