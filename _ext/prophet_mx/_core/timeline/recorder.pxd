"""The timeline's recorder: what happened to every unit, kept in a buffer of fixed size until a Python thread asks for it as text."""
from libc.stdint cimport int64_t

from .scheduler cimport BlockScheduler, GradientBlock, Unit

cdef struct UnitTrack:
    bint known                      # released while the recorder was on, and not yet answered
    bint flying                     # in its link's queue of units that have not drained
    int after                       # the next unit of that queue, -1 none
    GradientBlock block             # that it left with; number 0: with none
    double wire, drained            # when the link turned to it, and when its last byte had drained
    double answered
    int64_t answered_iteration

cdef struct LinkTrack:
    int first, last                 # queue of released units, in that order, -1 none
    int64_t drained                 # at the last sample
    double sampled
    double free                     # when the unit before had drained
    GradientBlock block             # whose first unit the link has turned to
    int64_t block_units, block_bytes, block_iteration
    double block_begin, block_end
    double counted                  # when counters were last kept
    int64_t counted_flight, counted_unanswered
    int counted_ready


cdef class Recorder:
    cdef:
        TimelineEvent* filling
        TimelineEvent* full
        int n, capacity
        UnitTrack* units
        int n_units
        LinkTrack* links
        int n_links
        Stamp stamp
        int64_t every, iterations_every
        int64_t iteration           # the newest one
        double iteration_begin
        double gap_since
        int step, step_units
        int64_t step_iteration, step_bytes
        double step_begin, step_end
        readonly int64_t lost

    cdef void ready(self, BlockScheduler s, int index, double t) noexcept nogil
    cdef void close_step(self) noexcept nogil
    cdef double released(self, BlockScheduler s, int n, double t, double wake) noexcept nogil
    cdef void sampled(self, BlockScheduler s, double t) noexcept nogil
    cdef void done(self, BlockScheduler s, int index, double t) noexcept nogil
    cdef void landed(self, int first, int count, int64_t iteration, double t) noexcept nogil
    cdef int link_index(self, Unit* unit) noexcept nogil
    cdef LinkTrack* link_of(self, BlockScheduler s, int index) noexcept nogil
    cdef void advance(self, BlockScheduler s, int index, double t) noexcept nogil
    cdef void pop(self, BlockScheduler s, LinkTrack* link, double when) noexcept nogil
    cdef void close_block(self, LinkTrack* link) noexcept nogil
    cdef void count(self, BlockScheduler s, int index, double t) noexcept nogil
    cdef TimelineEvent* add(self, EventKind kind, int index, int64_t iteration, double begin, double end) noexcept nogil
    cdef TimelineEvent* append(self, EventKind kind, int index, int64_t iteration, double begin, double end) noexcept nogil
    cdef int exchange(self, bint last) noexcept nogil
    cdef bytes text(self, int n, list labels)
    cdef int grow(self, int count) noexcept nogil
