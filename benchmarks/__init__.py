"""Benchmarks of prophet_mx, run from a checkout: ``python -m benchmarks.run --help`` and the like.

A module here is a command. ``comparison`` has the cells, the methods and the rows of a comparison, ``testbed`` the network and the emulated
job that it runs on, ``jobs`` the scripts that the other commands run, ``results`` what was measured.
"""

import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]

# Where the checkout is not compiled, prophet_mx is the installed one: the checkout then comes last on the path, not first.
if not any((_ROOT / "prophet_mx" / "_core").glob("*.so")):
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _ROOT] + [str(_ROOT)]
