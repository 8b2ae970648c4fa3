"""What the processes of a job have in their environment, wherever they run, besides what the user says."""

import os
from typing import Dict, Mapping

LISTEN_VARIABLE = "PORT"  # removed: ps-lite would take it as the port that every process has to listen on


def defaults(environ: Mapping[str, str], workers: int) -> Dict[str, str]:
    """Variables that are set unless ``environ`` has them. ``workers`` share this machine."""
    # Their output is a pipe: without this a Python program's lines would appear long after they were printed.
    values = {
        "PYTHONUNBUFFERED": "1",
        # OpenMP's default, all cores for each worker, makes them spin in each other's way.
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // workers)),
    }
    return {name: environ.get(name, value) for name, value in values.items()}
