"""The stream of an accelerator that takes wall time but no CPU, for benchmarks and the simulator's validation.

Contract: an operation is two engine ops. The *arrival* op depends on the arrays that others write (weights, gradients) and
notes when those were free; the *run* op depends on everything and puts the operation on the stream's queue. The stream
(one thread, operations in order of their run ops) starts an operation at the latest of: the nominal end of the previous one,
the time it was pushed, the arrival time. The engine's own delay between two operations of the stream therefore never counts,
and the delay of waking up does not add up. Everything below runs without the GIL; the lock guards the queue, the counters,
the trace and the times in an operation, and no call into MXNet or Python is made under it.
"""
from libc.stdint cimport int64_t
from libc.stdlib cimport free

from prophet_mx._core.engine cimport OnComplete
from prophet_mx._core.posix cimport CLOCK_MONOTONIC, clock_gettime, pthread_cond_t, pthread_mutex_t, pthread_t, timespec

cdef struct Stamp:                             # every STAMP_STRIDE-th element of an array, and the value it gets or must have
    float* data
    int64_t elements
    float value

cdef struct Span:                              # what the trace keeps of an operation; times in ns of CLOCK_MONOTONIC
    int tag
    int64_t start
    int64_t end

cdef struct Operation:
    Stream* stream
    Operation* next
    OnComplete done
    int64_t duration                           # ns, like the next two
    int64_t pushed
    int64_t arrived
    int references                             # engine ops that still point here
    int tag
    int stamps
    int checks
    Stamp* marks                               # first the stamps to write, then those to check

cdef struct Stream:
    pthread_t thread
    pthread_mutex_t lock
    pthread_cond_t changed
    Operation* first
    Operation* last
    int64_t end                                # nominal end of the last operation
    int64_t pending                            # operations pushed and not completed
    int64_t wrong                              # checked elements with another value
    bint stopping
    bint tracing
    Span* spans
    size_t span_count
    size_t span_room


cdef extern from "<time.h>" nogil:
    int clock_nanosleep(int, int, const timespec*, timespec*)
    enum:
        TIMER_ABSTIME

cdef extern from "<sys/prctl.h>" nogil:
    int prctl(int, unsigned long)
    enum:
        PR_SET_TIMERSLACK


cdef inline int64_t clock_ns() noexcept nogil:
    cdef timespec moment
    clock_gettime(CLOCK_MONOTONIC, &moment)
    return <int64_t>moment.tv_sec * 1000000000 + moment.tv_nsec


cdef inline void wake_in_time() noexcept nogil:
    """Of the calling thread: the default lets every sleep be 50 us late."""
    prctl(PR_SET_TIMERSLACK, 1)


cdef inline void sleep_until(int64_t moment) noexcept nogil:
    """``moment`` is as clock_ns() tells it."""
    cdef timespec wake
    wake.tv_sec = moment // 1000000000
    wake.tv_nsec = moment % 1000000000
    while clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, NULL) != 0:
        pass                                   # a signal; the moment stays the same


cdef inline void drop_reference(Operation* operation) noexcept nogil:
    """Give up one reference; the stream's lock is held."""
    operation.references -= 1
    if operation.references == 0:
        free(operation.marks)
        free(operation)


cdef void arrival(void* context, void* on_complete, void* param) noexcept nogil
cdef void run(void* context, void* on_complete, void* param) noexcept nogil
cdef void* stream_main(void* param) noexcept nogil
