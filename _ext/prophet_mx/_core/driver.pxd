"""The engine driver: see driver.pyx. Other units push ops whose parameter names a driver; these call what is declared here."""
from libc.stdint cimport int64_t

from .drain cimport Drain, DrainSource
from .mxapi cimport OnComplete
from .posix cimport pthread_cond_t, pthread_mutex_t, pthread_t
from .recorder cimport Recorder
from .scheduler cimport BlockScheduler
from .unit cimport UnitState

cdef struct WaitingUnit:
    int unit
    int link
    bint sent
    int drained                     # whether its bytes have left: 1, 0, or -1 if that is only predicted
    double since                    # when it was released, or else became ready

cdef struct ReadyEvent:
    int64_t iteration
    int unit
    double time


cdef class Driver:
    cdef:
        BlockScheduler scheduler
        Drain drain
        Recorder recorder           # of the timeline; None: off
        pthread_mutex_t lock
        pthread_cond_t wake
        pthread_t thread
        bint running, stopping
        bint open                   # every gate completes at once: at exit, and when the scheduler failed
        double sleeping_until       # the native thread's next wake-up; INFINITY: only a signal wakes it
        bint made                   # __cinit__ came to its end
        OnComplete* gates           # per unit: how to complete the gate of the unit's READY request
        int n_gates                 # there is room for
        bint recording              # whether ready events are kept for take_events()
        ReadyEvent* events          # not yet taken by Python
        int n_events, event_capacity
        int64_t requests, answers   # gates that ran, requests that were answered: counted whatever state the scheduler is in
        int fault                   # the unit whose state contradicted an event, -1 none

    cdef void acquire(self) noexcept
    cdef void use_source(self, DrainSource source) noexcept
    cdef void on_ready(self, int unit, int64_t iteration, OnComplete* complete) noexcept nogil
    cdef void on_done(self, int unit) noexcept nogil
    cdef void on_landed(self, int first, int count, int64_t iteration) noexcept nogil
    cdef bint consistent(self, int unit, UnitState expected, double t) noexcept nogil
    cdef int list_waiting(self, WaitingUnit* found) noexcept nogil
    cdef double flush(self, double t) noexcept nogil
    cdef void sample(self, double t, int which) noexcept nogil
    cdef void loop(self) noexcept nogil
    cdef int make_room(self, int capacity) noexcept nogil
