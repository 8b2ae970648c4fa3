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

cdef struct LinkState:              # a link at one moment: a dict for Python
    int64_t released, drained, unanswered
    double rate, rtt
    bint measured
    int64_t window, lead
    double patience
    int ready
    double backlog_seconds
    int64_t backlog_bytes

cdef struct Counters:               # since the start: a dict for Python
    int64_t iterations
    int64_t units, bytes            # released
    int64_t blocks                  # gradient blocks, and what left with them
    int64_t block_units, block_bytes
    int64_t inverted_bytes          # released while what is more urgent waited for the same link
    int64_t yields
    double wait_seconds             # from ready to released, summed up
    int64_t first_answers           # of the most urgent unit
    double first_seconds            # from ready to answered, summed up
    int64_t first_ahead             # bytes: see on_ready()


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
        Activity activity
        int64_t sequence            # numbers ready events, for policies that order by arrival
        int64_t overhead            # bytes a message costs on the wire besides its payload
        double answer_seconds       # from a release to its answer, when answers come quickly
        Counters counts

    cdef void acquire(self) noexcept
    cdef void on_ready(self, int index, int64_t iteration, double t) noexcept nogil
    cdef void step_ready(self, int gradient, int64_t iteration, double t) noexcept nogil
    cdef void on_drained(self, int index, int64_t total, double t) noexcept nogil
    cdef void on_done(self, int index, double t) noexcept nogil
    cdef void assume_drained(self, int index, int64_t total, double t) noexcept nogil
    cdef LinkState state_of(self, int index) noexcept nogil
    cdef bint anything_waits(self) noexcept nogil
    cdef Heap* heap_of(self, Unit* unit) noexcept nogil
    cdef int* latest_sent(self, int link) noexcept nogil
    cdef int grow(self, int capacity) noexcept nogil
    cdef int64_t payload(self, Unit* unit) noexcept nogil
    cdef int64_t share(self, int index) noexcept nogil
    cdef int64_t cost(self, Unit* unit) noexcept nogil
    cdef int64_t unanswered_on(self, int link) noexcept nogil
    cdef int64_t sent_bytes(self, int latest) noexcept nogil
    cdef int need_unit(self, int unit) except -1
    cdef int need_link(self, int link) except -1

cdef int choose_all(BlockScheduler s, double t, double* wake) noexcept nogil
cdef int choose_rest(BlockScheduler s, int n, double t) noexcept nogil
cdef const char* broken(BlockScheduler s) noexcept nogil
