"""How many bytes of each link have drained: asked of the kernel, fed from outside, or predicted."""
from libc.stdint cimport int64_t

from .scheduler cimport BlockScheduler, Link, Unit

cdef extern from *:
    """
    #define PROPHET_POLL_MIN 0.0002
    #define PROPHET_POLL_MAX 0.002
    """
    # Seconds between samples of a link while a window holds something back.
    double POLL_MIN "PROPHET_POLL_MIN"
    double POLL_MAX "PROPHET_POLL_MAX"

cdef enum:
    HOLDING = -2                    # sample(): the links that hold something back

cdef enum DrainSource:
    DRAIN_TCP = 0
    DRAIN_FED = 1                   # totals come from Driver.feed_drained(): a Python thread reads them (NIC counters)
    DRAIN_PREDICTED = 2             # bytes / rate, corrected by the answers

cdef struct Meter:                  # drain of one link
    int fd
    int64_t base                    # acknowledged bytes that are not the scheduler's: acked - base = drained
    double sampled                  # when
    int64_t acked                   # what the kernel said then
    int64_t quiet_written           # bytes written to the socket when everything was last answered, -1 unknown
    int64_t quiet_released
    int64_t quiet_messages
    int64_t messages                # units released on this link in all
    double moved                    # when bytes were last released or seen to drain
    int64_t moved_released          # the scheduler's counters at that time
    int64_t moved_drained


cdef class Drain:
    cdef:
        DrainSource source
        Meter* meters
        int n_links
        double last_prediction
        double settled              # when the counters were last aligned

    cdef void use_tcp(self, BlockScheduler s, int* fds) noexcept nogil
    cdef void sample(self, BlockScheduler s, double t, int which, bint watched) noexcept nogil
    cdef void unit_released(self, int link) noexcept nogil
    cdef void unit_answered(self, BlockScheduler s, int unit, double t) noexcept nogil
    cdef int has_drained(self, BlockScheduler s, Unit* unit) noexcept nogil
    cdef void ask(self, BlockScheduler s, int index, double t) noexcept nogil
    cdef bint quiet(self, Link* link, Meter* meter, double t) noexcept nogil
    cdef void trust_answer(self, BlockScheduler s, int unit, double t) noexcept nogil
    cdef void settle(self, BlockScheduler s, double t) noexcept nogil
