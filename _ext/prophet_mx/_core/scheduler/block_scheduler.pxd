"""The block scheduler's state. What may be called, and how, is listed in block_scheduler.pyx."""
from libc.stdint cimport int64_t

from .posix cimport pthread_mutex_t

cdef enum:
    ALL = -1                        # of links: every one

cdef struct Queue:                  # what waits for a link, and for its answers
    int64_t unanswered              # bytes sent and not answered, each message counted with what it costs: see cost()
    int64_t largest                 # bytes of its largest unit
    Heap ready
    int sent                        # latest of its sent units, -1 none
    int candidate                   # while decide() runs: the unit that may go next, -1 none
    double opens                    # and when a limit that holds one back may let it go
    double moved                    # when the link was last seen to move: a release, bytes that drained, an answer
    int hurry                       # how often the patience is halved: see patience()
    bint yielded                    # whether its lead limit has yielded in this iteration
    GradientBlock block             # the newest

cdef struct LinkState:              # a link as it was at one moment
    Link link
    int64_t unanswered, window, lead
    double patience
    int ready


cdef class BlockScheduler:
    cdef:
        pthread_mutex_t lock
        Unit* units
        int count, capacity
        Link* links
        Queue* queues               # by link
        int n_links
        Heap wide                   # ready wide units
        int wide_sent               # latest sent wide unit, -1 none
        int n_sent                  # units in state SENT
        int* out                    # decide(): the units to release
        str policy
        Limits limits
        Steps steps
        Sending activity
        int64_t sequence            # numbers ready events, for policies that order by arrival
        int64_t overhead            # bytes a message costs on the wire besides its payload
        double answer_seconds       # from a release to its answer, when answers come quickly
        # statistics
        readonly int64_t units_released, bytes_released, inverted_bytes, yields, iterations
        readonly int64_t blocks, block_units, block_bytes       # gradient blocks, and what left with them
        readonly int64_t first_answers, first_ahead     # ahead: bytes, see on_ready()
        readonly double wait_seconds, first_seconds

    cdef void acquire(self) noexcept
    cdef void on_ready(self, int index, int64_t iteration, double t) noexcept nogil
    cdef void on_drained(self, int index, int64_t total, double t) noexcept nogil
    cdef void on_done(self, int index, double t) noexcept nogil
    cdef void assume_drained(self, int index, int64_t total, double t) noexcept nogil
    cdef int choose_all(self, double t, double* wake) noexcept nogil
    cdef int choose_rest(self, int n, double t) noexcept nogil
    cdef LinkState state_of(self, int index) noexcept nogil
    cdef bint anything_waits(self) noexcept nogil
    cdef Heap* heap_of(self, Unit* unit) noexcept nogil
    cdef int* latest_sent(self, int link) noexcept nogil
    cdef int grow(self, int capacity) noexcept nogil
    cdef int choose(self, double t, int changed, double* wake) noexcept nogil
    cdef bint window_open(self, int link, int unit, double t, double* wake) noexcept nogil
    cdef int allowed(self, Heap* heap, double t, double* wake) noexcept nogil
    cdef bint lead_allows(self, int index, double t, double* wake) noexcept nogil
    cdef bint quiet(self, int link, double t, double* wake) noexcept nogil
    cdef double patience(self, int link) noexcept nogil
    cdef void calm_down(self) noexcept nogil
    cdef void answered(self, int link, Unit* unit, double t) noexcept nogil
    cdef bint is_head(self, int link, int index) noexcept nogil
    cdef int64_t unanswered_before(self, int link, int index, bint by_urgency) noexcept nogil
    cdef int64_t payload(self, Unit* unit) noexcept nogil
    cdef int64_t share(self, int index) noexcept nogil
    cdef int64_t cost(self, Unit* unit) noexcept nogil
    cdef int64_t unanswered_on(self, int link) noexcept nogil
    cdef int64_t sent_bytes(self, int latest) noexcept nogil
    cdef void release(self, int index, double t) noexcept nogil
    cdef void assemble(self, int index, double t) noexcept nogil
    cdef int need_unit(self, int unit) except -1
    cdef int need_link(self, int link) except -1

cdef dict as_dict(LinkState* state)
cdef const char* broken(BlockScheduler s) noexcept nogil
