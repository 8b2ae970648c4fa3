"""The compiled part of prophet_mx: policies and scheduler, link estimates, the driver on MXNet's engine, the timeline's recorder.

An extension knows only those above it:

    scheduler   decides when each unit goes onto the wire: a state machine, its units and links, its limits, its invariants
    drain       how many bytes of each link have drained, by what the kernel says of its connection
    timeline    what happened to every unit, and its text
    engine      MXNet's C functions, the driver of a scheduler, what is pushed onto MXNet's engine
    halves      numbers of 32 bits as numbers of 16, for the engine and for servers
    sgd         an optimizer's updates, for servers
    norms       the norm of a gradient that is on several ranks
    alarm       the last word of a process that does not end

An extension is a .pyx file of _ext/, with the files that it includes from the folder of its name. A .pxd file declares what other
extensions may use. All know posix.pxd: threads and the clock.
"""

import os
import sys
from importlib.util import find_spec


def _use_installed() -> None:
    """Take the compiled part from the package that pip has installed: Python was started in a checkout that was not compiled in place, and
    the checkout hides that package. Both must declare the same.

    Raises ModuleNotFoundError if there is no such package, or it is of another version.
    """
    why = "it is neither compiled in place nor installed: pip install . in the folder of prophet_mx"
    for folder in filter(os.path.isdir, (os.path.join(entry or os.curdir, "prophet_mx", "_core") for entry in sys.path)):
        if os.path.samefile(folder, os.path.dirname(__file__)):
            continue
        if _declared(folder) == _declared(os.path.dirname(__file__)):
            __path__.append(folder)
            return
        why = f"that in {folder} is of another version: pip install it again, or start Python outside of the checkout"
    raise ModuleNotFoundError(
        f"the compiled part of prophet_mx is missing in {os.path.dirname(__file__)}, and {why}", name=__name__ + ".alarm"
    )


def _declared(folder: str) -> bytes:
    """What the compiled part in a folder has, as its stubs say."""
    with open(os.path.join(folder, "__init__.pyi"), "rb") as file:
        return file.read()


if find_spec(__name__ + ".alarm") is None:
    _use_installed()

# What is imported here is declared in __init__.pyi.
from .alarm import alarm  # noqa: F401
from .drain import POLL_TIMES, tcp_sample  # noqa: F401
from .engine import (  # noqa: F401
    MAX_OUTS,
    MXNET_FUNCTIONS,
    Arrival,
    Driver,
    Gathering,
    Group,
    Half,
    Parameter,
    array_shape,
    cpu_arrays_are_plain,
    load_mxnet,
    plain,
)
from .halves import LARGEST_HALF, change, follow, portable, squeeze, widen  # noqa: F401
from .norms import SUMS, add_squares  # noqa: F401
from .scheduler import Scheduler  # noqa: F401
from .sgd import sgd  # noqa: F401
from .timeline import GAP_ROW, ITERATION_ROW, LABEL_MAX, LINK_ROW, STEP_ROW, Recorder  # noqa: F401
