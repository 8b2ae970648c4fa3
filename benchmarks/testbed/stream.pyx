"""The stream of an emulated accelerator: see stream.pxd."""
from libc.stdint cimport int64_t
from libc.stdlib cimport realloc

from prophet_mx._core.engine cimport OnComplete
from prophet_mx._core.posix cimport pthread_cond_broadcast, pthread_cond_wait, pthread_mutex_lock, pthread_mutex_unlock

cdef enum:
    STAMP_STRIDE = 1024                        # elements: one stamp per page of float32


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
    wake_in_time()
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
        sleep_until(end)

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
