# An accelerator that takes wall time but no CPU, for benchmarks and the simulator's validation.
#
# Contract: an operation is two engine ops. The *arrival* op depends on the arrays that others write (weights, gradients) and
# notes when those were free; the *run* op depends on everything and puts the operation on the stream's queue. The stream
# (one thread, operations in order of their run ops) starts an operation at the latest of: the nominal end of the previous one,
# the time it was pushed, the arrival time. The engine's own delay between two operations of the stream therefore never counts,
# and the delay of waking up does not add up. Everything below runs without the GIL; the lock guards the queue, the counters,
# the trace and the times in an operation, and no call into MXNet or Python is made under it.
import atexit

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


cdef class Accelerator:
    """A serial device stream whose operations take wall time and no CPU.

    Call :func:`prophet_mx.mxnet_api.bind` first. Close it, or use it as a context manager.

    >>> with Accelerator() as device:                                            # doctest: +SKIP
    ...     device.op(reads=[weight, data], writes=[output], seconds=0.010)
    ...     output.wait_to_read()
    """
    cdef Stream* stream
    cdef set inner

    def __cinit__(self):
        self.inner = set()
        self.stream = <Stream*>calloc(1, sizeof(Stream))
        if self.stream is NULL:
            raise MemoryError()
        pthread_mutex_init(&self.stream.lock, NULL)
        pthread_cond_init(&self.stream.changed, NULL)
        if pthread_create(&self.stream.thread, NULL, stream_main, self.stream) != 0:
            self._free()
            raise RuntimeError("cannot start the accelerator's thread")

    def __init__(self, bint trace=True):
        """``trace``: keep when each operation ran, for :meth:`take_trace`."""
        if MX.engine_push_async_nd is NULL:
            raise RuntimeError("call prophet_mx.mxnet_api.bind() before making an Accelerator")
        self.stream.tracing = trace
        atexit.register(self.close)            # before MXNet's own handler, which drops what the engine still has queued

    def __dealloc__(self):
        if self.stream is not NULL:
            self._stop()
            self._free()

    def keep(self, array):
        """Declare that only this stream's operations write ``array`` (an activation), so waiting for it is waiting for the
        stream itself. Returns the array; keep a reference to it."""
        self.inner.add(array.handle.value)
        return array

    def op(self, reads, writes, double seconds, int tag=-1, stamps=(), checks=()):
        """Push an operation of ``seconds`` that reads and writes NDArrays; returns at once.

        An array may be in one of ``reads`` and ``writes`` only, once. ``stamps`` are (address, elements, value) of float32
        arrays among ``writes``: every 1024th element gets the value. ``checks`` are the same of arrays among ``reads``:
        elements with another value are counted in :attr:`wrong`.

        Raises
        ------
        RuntimeError
            the accelerator is closed.
        ValueError
            negative time, or an array named twice.
        mxnet.base.MXNetError
            the engine refused the operation.
        """
        if self.stream is NULL:
            raise RuntimeError("the accelerator is closed")
        read = [array.handle.value for array in reads]
        write = [array.handle.value for array in writes]
        if seconds < 0 or len(set(read + write)) < len(read) + len(write):
            raise ValueError("an operation needs time >= 0 and names each array once")
        cdef Operation* operation = <Operation*>calloc(1, sizeof(Operation))
        if operation is NULL:
            raise MemoryError()
        outer_read = [handle for handle in read if handle not in self.inner]
        outer_write = [handle for handle in write if handle not in self.inner]
        cdef bint outside = bool(outer_read or outer_write)
        try:
            self._mark(operation, stamps, checks)
        except BaseException:
            free(operation.marks)
            free(operation)
            raise
        operation.stream = self.stream
        operation.duration = <int64_t>(seconds * 1e9 + 0.5)
        operation.tag = tag
        operation.references = 1 + outside
        operation.pushed = clock_ns()
        if not outside:
            operation.arrived = operation.pushed
        pthread_mutex_lock(&self.stream.lock)
        self.stream.pending += 1
        pthread_mutex_unlock(&self.stream.lock)
        cdef bint arriving = False
        try:
            if outside:
                push_operation(arrival, operation, outer_read, outer_write)
                arriving = True
            push_operation(run, operation, read, write)
        except BaseException:
            pthread_mutex_lock(&self.stream.lock)
            self.stream.pending -= 1
            if outside and not arriving:
                drop_reference(operation)
            drop_reference(operation)
            pthread_mutex_unlock(&self.stream.lock)
            raise

    cdef int _mark(self, Operation* operation, stamps, checks) except -1:
        marks = list(stamps) + list(checks)
        operation.stamps = len(stamps)
        operation.checks = len(checks)
        operation.marks = <Stamp*>calloc(max(1, len(marks)), sizeof(Stamp))
        if operation.marks is NULL:
            raise MemoryError()
        for i, (address, elements, value) in enumerate(marks):
            operation.marks[i].data = <float*><uintptr_t>address
            operation.marks[i].elements = elements
            operation.marks[i].value = value
        return 0

    @property
    def wrong(self):
        """Checked elements that had another value than they should."""
        if self.stream is NULL:
            raise RuntimeError("the accelerator is closed")
        return self.stream.wrong

    def take_trace(self):
        """The operations completed since the last call, as (tag, start, end) in seconds of ``time.monotonic``."""
        if self.stream is NULL:
            raise RuntimeError("the accelerator is closed")
        pthread_mutex_lock(&self.stream.lock)
        cdef Span* spans = self.stream.spans
        cdef size_t i, count = self.stream.span_count
        self.stream.spans = NULL
        self.stream.span_count = self.stream.span_room = 0
        pthread_mutex_unlock(&self.stream.lock)
        try:
            return [(spans[i].tag, spans[i].start / 1e9, spans[i].end / 1e9) for i in range(count)]
        finally:
            free(spans)

    def close(self):
        """Wait until every pushed operation has completed and end the thread. Safe to call again. Blocks as long as
        something outside holds an operation's arrays; other Python threads run meanwhile."""
        if self.stream is not NULL:
            self._stop()
            self._free()
            atexit.unregister(self.close)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    cdef void _stop(self) noexcept:
        cdef Stream* stream = self.stream
        with nogil:
            pthread_mutex_lock(&stream.lock)
            while stream.pending:
                pthread_cond_wait(&stream.changed, &stream.lock)
            stream.stopping = True
            pthread_cond_broadcast(&stream.changed)
            pthread_mutex_unlock(&stream.lock)
            pthread_join(stream.thread, NULL)

    cdef void _free(self) noexcept:
        pthread_cond_destroy(&self.stream.changed)
        pthread_mutex_destroy(&self.stream.lock)
        free(self.stream.spans)
        free(self.stream)
        self.stream = NULL


cdef int push_operation(async_fn function, Operation* operation, list reads, list writes) except -1:
    """Push an engine op of the accelerator's device on these NDArray handles. It runs even if a producer failed."""
    cdef EngineContext context
    cdef int prop = FN_ASYNC, code, i, read_count = len(reads), write_count = len(writes)
    cdef void** handles = <void**>malloc((read_count + write_count + 1) * sizeof(void*))
    if handles is NULL:
        raise MemoryError()
    context.dev_type = DEV_CPU
    context.dev_id = ACCELERATOR_DEVICE
    for i in range(read_count):
        handles[i] = <void*><uintptr_t>reads[i]
    for i in range(write_count):
        handles[read_count + i] = <void*><uintptr_t>writes[i]
    with nogil:
        code = MX.engine_push_async_nd(function, operation, NULL, &context, handles, read_count, handles + read_count,
                                       write_count, &prop, 0, b"accelerator", True)
        free(handles)
    return mx_check(code)
