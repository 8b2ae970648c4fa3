"""The compiled part of prophet_mx: policies and scheduler, link estimates, the driver on MXNet's engine, the timeline's recorder.

Each unit's .pxd file says what it is for and what the others may call. A unit knows only those above it:

    posix, unit, link, steps    threads and clock; units, links and steps as data, with the functions that keep them
    block                       Prophet's gradient block, and where the paper's objects are here
    policy                      limits on what is in flight and unanswered
    scheduler                   the block scheduler, a state machine; pyscheduler is the same for Python
    invariants                  what must always hold of it
    mxapi, tcpinfo              MXNet's C functions; what the kernel says of a connection
    drain                       how many bytes of each link have drained
    events, recorder            the timeline
    driver                      has a scheduler, a drain and a recorder, and the lock that guards them
    copies                      between a caller's arrays and ours
    ops, parameter, arrival     what is pushed onto MXNet's engine
    alarm                       the last word of a process that does not end
"""

from .alarm import alarm
from .arrival import Arrival
from .copies import cpu_arrays_are_plain, plain
from .drain import POLL_TIMES
from .driver import Driver
from .events import GAP_ROW, ITERATION_ROW, LABEL_MAX, LINK_ROW, STEP_ROW
from .mxapi import MXNET_FUNCTIONS, array_shape, load_mxnet
from .parameter import MAX_OUTS, Parameter
from .pyscheduler import Scheduler
from .recorder import Recorder
from .tcpinfo import tcp_sample

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
