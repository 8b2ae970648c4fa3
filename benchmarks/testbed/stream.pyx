# The stream of an accelerator that takes wall time but no CPU, for benchmarks and the simulator's validation.
#
# Contract: an operation is two engine ops. The *arrival* op depends on the arrays that others write (weights, gradients) and
# notes when those were free; the *run* op depends on everything and puts the operation on the stream's queue. The stream
# (one thread, operations in order of their run ops) starts an operation at the latest of: the nominal end of the previous one,
# the time it was pushed, the arrival time. The engine's own delay between two operations of the stream therefore never counts,
# and the delay of waking up does not add up. Everything below runs without the GIL; the lock guards the queue, the counters,
# the trace and the times in an operation, and no call into MXNet or Python is made under it.
cdef extern from "<pthread.h>" nogil:          # the rest of pthread and the clock: as declared in engine.pyx
    int pthread_cond_broadcast(pthread_cond_t*)

cdef extern from "<time.h>" nogil:
    int clock_nanosleep(int, int, const timespec*, timespec*)
    enum:
        TIMER_ABSTIME

cdef extern from "<sys/prctl.h>" nogil:
    int prctl(int, unsigned long)
    enum:
        PR_SET_TIMERSLACK

cdef enum:
    STAMP_STRIDE = 1024                        # elements: one stamp per page of float32
    ACCELERATOR_DEVICE = 100                   # an engine queue of its own: cpu(0)'s has the KVStore's copies in it

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


cdef inline int64_t clock_ns() noexcept nogil:
    cdef timespec moment
    clock_gettime(CLOCK_MONOTONIC, &moment)
    return <int64_t>moment.tv_sec * 1000000000 + moment.tv_nsec


cdef inline void drop_reference(Operation* operation) noexcept nogil:
    """Give up one reference; the stream's lock is held."""
    operation.references -= 1
    if operation.references == 0:
        free(operation.marks)
        free(operation)


cdef void arrival(void* context, void* on_complete, void* param) noexcept nogil:
    """Engine op: the arrays that others write are free. On any engine thread."""
    cdef Operation* operation = <Operation*>param
    cdef Stream* stream = operation.stream
    cdef OnComplete done = (<OnComplete*>on_complete)[0]
    pthread_mutex_lock(&stream.lock)
    operation.arrived = clock_ns()
    drop_reference(operation)
    pthread_mutex_unlock(&stream.lock)
    done.callback(done.engine, done.param, NULL)


cdef void run(void* context, void* on_complete, void* param) noexcept nogil:
    """Engine op: everything is free; the operation goes on the stream. On any engine thread."""
    cdef Operation* operation = <Operation*>param
    cdef Stream* stream = operation.stream
    pthread_mutex_lock(&stream.lock)
    operation.done = (<OnComplete*>on_complete)[0]
    if operation.arrived == 0:                 # overtook its arrival op by a moment
        operation.arrived = clock_ns()
    if stream.last is NULL:
        stream.first = operation
    else:
        stream.last.next = operation
    stream.last = operation
    pthread_cond_broadcast(&stream.changed)
    pthread_mutex_unlock(&stream.lock)


cdef int64_t touch(Operation* operation) noexcept nogil:
    """Write the operation's stamps and count wrong elements among its checks. It owns its arrays now, and has time."""
    cdef int64_t i, wrong = 0
    cdef int k
    cdef Stamp* mark
    for k in range(operation.stamps):
        mark = &operation.marks[k]
        i = 0
        while i < mark.elements:
            mark.data[i] = mark.value
            i += STAMP_STRIDE
    for k in range(operation.stamps, operation.stamps + operation.checks):
        mark = &operation.marks[k]
        i = 0
        while i < mark.elements:
            wrong += mark.data[i] != mark.value
            i += STAMP_STRIDE
    return wrong


cdef void keep_span(Stream* stream, int tag, int64_t start, int64_t end) noexcept nogil:
    """Add to the trace; the lock is held. Without memory the span is lost, nothing else."""
    cdef size_t room
    cdef Span* spans
    if stream.span_count == stream.span_room:
        room = 2 * stream.span_room + 1024
        spans = <Span*>realloc(stream.spans, room * sizeof(Span))
        if spans is NULL:
            return
        stream.spans = spans
        stream.span_room = room
    stream.spans[stream.span_count].tag = tag
    stream.spans[stream.span_count].start = start
    stream.spans[stream.span_count].end = end
    stream.span_count += 1


cdef void* stream_main(void* param) noexcept nogil:
    """The stream's thread: one operation after the other, each until its nominal end."""
    cdef Stream* stream = <Stream*>param
    cdef Operation* operation
    cdef OnComplete done
    cdef int64_t start, end, wrong
    cdef timespec wake
    prctl(PR_SET_TIMERSLACK, 1)                # the default lets every sleep be 50 us late
    pthread_mutex_lock(&stream.lock)
    while True:
        while stream.first is NULL and not stream.stopping:
            pthread_cond_wait(&stream.changed, &stream.lock)
        operation = stream.first
        if operation is NULL:
            break
        stream.first = operation.next
        if stream.first is NULL:
            stream.last = NULL
        start = max(stream.end, operation.pushed, operation.arrived)
        end = start + operation.duration
        pthread_mutex_unlock(&stream.lock)

        wrong = touch(operation)
        wake.tv_sec = end // 1000000000
        wake.tv_nsec = end % 1000000000
        while clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, NULL) != 0:
            pass                               # a signal; the end stays the same

        pthread_mutex_lock(&stream.lock)
        stream.end = end
        stream.wrong += wrong
        if stream.tracing:
            keep_span(stream, operation.tag, start, end)
        done = operation.done
        drop_reference(operation)
        pthread_mutex_unlock(&stream.lock)
        done.callback(done.engine, done.param, NULL)
        pthread_mutex_lock(&stream.lock)
        stream.pending -= 1
        pthread_cond_broadcast(&stream.changed)
    pthread_mutex_unlock(&stream.lock)
    return NULL
