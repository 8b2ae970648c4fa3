"""The accelerator as Python sees it: operations on NDArrays go in, stream.pyx runs them."""
from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc

from prophet_mx._core.engine cimport DEV_CPU, FN_ASYNC, MX, EngineContext, async_fn, mx_check, need_mxnet
from prophet_mx._core.posix cimport (pthread_cond_broadcast, pthread_cond_destroy, pthread_cond_init, pthread_cond_wait, pthread_create,
                                     pthread_join, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock,
                                     pthread_mutex_unlock)

from .stream cimport Operation, Span, Stamp, Stream, arrival, clock_ns, drop_reference, run, stream_main

import atexit

cdef enum:
    ACCELERATOR_DEVICE = 100        # an engine queue of its own: cpu(0)'s has the KVStore's copies in it


cdef class Accelerator:
    """A serial device stream whose operations take wall time and no CPU.

    Call :func:`prophet_mx.mxnet.api.bind` first. Close it, or use it as a context manager.

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
        need_mxnet()
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
