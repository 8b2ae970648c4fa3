"""The compiled part of prophet_mx: policies and scheduler, link estimates, the driver on MXNet's engine, the timeline's recorder.

An extension knows only those above it:

    scheduler   decides when each unit goes onto the wire: a state machine, its units and links, its limits, its invariants
    drain       how many bytes of each link have drained, by what the kernel says of its connection
    timeline    what happened to every unit, and its text
    engine      MXNet's C functions, the driver of a scheduler, what is pushed onto MXNet's engine
    alarm       the last word of a process that does not end

An extension is a .pyx file of _ext/, with the files that it includes from the folder of its name. A .pxd file declares what other
extensions may use. All know posix.pxd: threads and the clock.
"""

from .alarm import alarm
from .drain import POLL_TIMES, tcp_sample
from .engine import (
    MAX_OUTS,
    MXNET_FUNCTIONS,
    Arrival,
    Driver,
    Gathering,
    Group,
    Parameter,
    array_shape,
    cpu_arrays_are_plain,
    load_mxnet,
    plain,
)
from .scheduler import Scheduler
from .timeline import GAP_ROW, ITERATION_ROW, LABEL_MAX, LINK_ROW, STEP_ROW, Recorder

__all__ = [
    "GAP_ROW",
    "ITERATION_ROW",
    "LABEL_MAX",
    "LINK_ROW",
    "MAX_OUTS",
    "MXNET_FUNCTIONS",
    "POLL_TIMES",
    "STEP_ROW",
    "Arrival",
    "Driver",
    "Gathering",
    "Group",
    "Parameter",
    "Recorder",
    "Scheduler",
    "alarm",
    "array_shape",
    "cpu_arrays_are_plain",
    "load_mxnet",
    "plain",
    "tcp_sample",
]
