"""What ``prophet-mx launch --schedule`` adds to the environment of a job's processes."""

import os
from typing import Dict, Mapping

from . import bootstrap

FOLDER = os.path.dirname(os.path.abspath(bootstrap.__file__))


def with_hook(env: Mapping[str, str]) -> Dict[str, str]:
    """``env`` with ``prophet_mx/launcher/bootstrap`` first on ``PYTHONPATH``: Python runs the ``sitecustomize`` that is in there.

    That works for ``python train.py``, for ``python -m package`` and for what these start, but not for a Python that ignores its
    environment (``-E``, ``-I``) or leaves out ``site`` (``-S``).
    """
    rest = [folder for folder in env.get("PYTHONPATH", "").split(os.pathsep) if folder and folder != FOLDER]
    return {**env, "PYTHONPATH": os.pathsep.join([FOLDER] + rest)}
