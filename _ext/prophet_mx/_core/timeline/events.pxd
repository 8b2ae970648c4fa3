"""The events of a timeline, and their text: JSON objects of Chrome's trace format."""
from libc.stdint cimport int64_t

cdef enum EventKind:
    UNIT_EVENT = 0
    UNPACK_EVENT = 1
    BLOCK_EVENT = 2
    STEP_EVENT = 3
    ITERATION_EVENT = 4
    GAP_EVENT = 5
    COUNTER_EVENT = 6

cdef struct TimelineEvent:
    EventKind kind
    int index                       # unit, link or step
    int64_t iteration
    int64_t[5] numbers
    double[5] times

cdef struct Stamp:                  # whose events they are
    int process                     # number of the worker's process in the trace; its units have the next one
    double origin                   # when times begin


cdef inline long us(Stamp* stamp, double t) noexcept nogil:
    """Microseconds since the origin: whole ones, so that slices which touch do not overlap."""
    return <long>((t - stamp.origin) * 1e6 + 0.5)


cdef Py_ssize_t format_events(Stamp* stamp, TimelineEvent* events, int n, const char** names, int n_names, char** text) noexcept nogil
