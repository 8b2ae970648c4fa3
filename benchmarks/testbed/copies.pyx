"""The copy engines of an emulated device: see copies.pxd."""
from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from prophet_mx._core.engine cimport DEV_CPU, FN_ASYNC, MX, EngineContext, OnComplete, mx_check, need_mxnet
from prophet_mx._core.posix cimport (pthread_cond_broadcast, pthread_cond_destroy, pthread_cond_init, pthread_cond_wait, pthread_create,
                                     pthread_join, pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock)

from .stream cimport clock_ns, sleep_until, wake_in_time

import ctypes

cdef enum:
    COPY_DEVICE = 101                          # an engine queue of its own
    TO_HOST = 0
    TO_DEVICE = 1
    ELEMENT_BYTES = 4                          # float32 alone

cdef double HOST_RATE = 4.0                    # bytes/ns that the host copies, or more

cdef struct Span:                              # an array of the device
    char* start
    char* stop

cdef Engines* installed = NULL                 # the device whose arrays are looked for in MXNet's calls
cdef Span* spans = NULL
cdef int span_count = 0
cdef int (*array_data)(void*, void**) noexcept nogil
cdef int (*real_pushpull)(void*, unsigned int, const int*, unsigned int, const int*, void**, void**, int) noexcept nogil
cdef int (*real_pushpull_ex)(void*, unsigned int, const char**, unsigned int, const char**, void**, void**, int) noexcept nogil


cdef class CopyEngines:
    """The copy engines of a device whose memory ``arrays`` are in. Close it, or use it as a context manager. One at a time.

    Call :func:`prophet_mx.mxnet.api.bind` first. From then on the copies that prophet_mx asks for between these arrays and others take
    time.

    >>> with CopyEngines(12e9, [gradient, weight]) as engines:                   # doctest: +SKIP
    ...     engines.copy(gradient, host, priority=-3)
    ...     host.wait_to_read()
    """
    cdef Engines* engines

    def __cinit__(self, double rate, arrays):
        global installed, spans, span_count
        need_mxnet()
        if not rate > 0 or installed is not NULL:
            raise ValueError("copy engines have a rate above 0, and there is one device at a time")
        self._find(arrays)
        self.engines = <Engines*>calloc(1, sizeof(Engines))
        if self.engines is NULL:
            raise MemoryError()
        self.engines.rate = rate
        pthread_mutex_init(&self.engines.lock, NULL)
        pthread_cond_init(&self.engines.changed, NULL)
        for i in range(THREADS):
            if pthread_create(&self.engines.threads[i], NULL, copy_main, self.engines) != 0:
                raise RuntimeError("cannot start a thread of the copy engines")
        self._stand_in_front()

    cdef int _find(self, arrays) except -1:
        """Where the arrays are."""
        global spans, span_count, array_data
        import mxnet

        array_data = <int (*)(void*, void**) noexcept nogil><uintptr_t>ctypes.cast(mxnet.base._LIB.MXNDArrayGetData, ctypes.c_void_p).value
        span_count = len(arrays)
        spans = <Span*>calloc(max(1, span_count), sizeof(Span))
        if spans is NULL:
            raise MemoryError()
        for i, array in enumerate(arrays):
            mx_check(array_data(<void*><uintptr_t>array.handle.value, <void**>&spans[i].start))
            spans[i].stop = spans[i].start + ELEMENT_BYTES * <int64_t>array.size
        return 0

    cdef void _stand_in_front(self):
        global installed, real_pushpull, real_pushpull_ex
        installed = self.engines
        real_pushpull, real_pushpull_ex = MX.kv_pushpull, MX.kv_pushpull_ex
        MX.kv_pushpull, MX.kv_pushpull_ex = pushpull, pushpull_ex

    def copy(self, source, target, int priority=0):
        """Copy one array to another of the same size, one of which is the device's; returns at once."""
        if self.engines is NULL:
            raise RuntimeError("the copy engines are closed")
        cdef void* read = <void*><uintptr_t>source.handle.value
        cdef void* written = <void*><uintptr_t>target.handle.value
        mx_check(copy_on_device(read, written, priority))

    @property
    def copied(self):
        """Bytes that were copied to the host, and to the device."""
        if self.engines is NULL:
            raise RuntimeError("the copy engines are closed")
        return self.engines.copied[TO_HOST], self.engines.copied[TO_DEVICE]

    def close(self):
        """Wait until every copy has been made, and leave MXNet's calls alone again. Safe to call again."""
        global installed, spans, span_count
        if self.engines is NULL:
            return
        MX.kv_pushpull, MX.kv_pushpull_ex = real_pushpull, real_pushpull_ex
        cdef Engines* engines = self.engines
        with nogil:
            pthread_mutex_lock(&engines.lock)
            while engines.pending:
                pthread_cond_wait(&engines.changed, &engines.lock)
            engines.stopping = True
            pthread_cond_broadcast(&engines.changed)
            pthread_mutex_unlock(&engines.lock)
            for i in range(THREADS):
                pthread_join(engines.threads[i], NULL)
        pthread_cond_destroy(&engines.changed)
        pthread_mutex_destroy(&engines.lock)
        free(engines)
        free(spans)
        self.engines = installed = NULL
        spans, span_count = NULL, 0

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


cdef bint on_device(void* array) noexcept nogil:
    """Whether an array, or the one that it is a view of, is the device's."""
    cdef void* data = NULL
    cdef int i
    if array_data(array, &data) == 0:
        for i in range(span_count):
            if spans[i].start <= <char*>data < spans[i].stop:
                return True
    return False


cdef int pushpull(void* store, unsigned int vnum, const int* vkeys, unsigned int onum, const int* okeys, void** values, void** outs,
                  int priority) noexcept nogil:
    """In front of MXKVStorePushPull, as prophet_mx calls it."""
    if store != MX.copier:
        return arriving(real_pushpull(store, vnum, vkeys, onum, okeys, values, outs, priority), onum, outs, priority)
    if on_device(values[0]) or on_device(outs[0]):
        return copy_on_device(values[0], outs[0], priority)
    return real_pushpull(store, vnum, vkeys, onum, okeys, values, outs, priority)


cdef int pushpull_ex(void* store, unsigned int vnum, const char** vkeys, unsigned int onum, const char** okeys, void** values, void** outs,
                     int priority) noexcept nogil:
    """In front of MXKVStorePushPullEx."""
    return arriving(real_pushpull_ex(store, vnum, vkeys, onum, okeys, values, outs, priority), onum, outs, priority)


cdef int arriving(int code, unsigned int count, void** outs, int priority) noexcept nogil:
    """What a store copies to arrays of the device is there only after a copy of the device."""
    cdef unsigned int i
    for i in range(count):
        if code == 0 and on_device(outs[i]):
            code = push_copy(NULL, outs[i], TO_DEVICE, priority)
    return code


cdef int copy_on_device(void* source, void* target, int priority) noexcept nogil:
    return push_copy(source, target, TO_HOST if on_device(source) else TO_DEVICE, priority)


cdef int push_copy(void* source, void* target, int way, int priority) noexcept nogil:
    """Push the engine op of a copy; MXNet's code."""
    cdef:
        EngineContext context
        int prop = FN_ASYNC, dimensions, i, code
        const int64_t* shape
        Copy* copy = <Copy*>calloc(1, sizeof(Copy))
    if copy is NULL:
        return -1
    copy.engines, copy.way, copy.priority, copy.bytes = installed, way, priority, ELEMENT_BYTES
    code = MX.array_shape(target, &dimensions, &shape)
    if code == 0:
        for i in range(dimensions):
            copy.bytes *= shape[i]
        code = array_data(target, <void**>&copy.target)
    if code == 0 and source is not NULL:
        code = array_data(source, <void**>&copy.source)
    if code != 0:
        free(copy)
        return code
    pthread_mutex_lock(&installed.lock)
    installed.pending += 1
    pthread_mutex_unlock(&installed.lock)
    context.dev_type = DEV_CPU
    context.dev_id = COPY_DEVICE
    code = MX.engine_push_async_nd(copy_op, copy, NULL, &context, &source, 1 if source is not NULL else 0, &target, 1, &prop, 0,
                                   b"copy_engine", True)
    if code != 0:
        free(copy)
        pthread_mutex_lock(&installed.lock)
        installed.pending -= 1
        pthread_mutex_unlock(&installed.lock)
    return code


cdef void copy_op(void* context, void* on_complete, void* param) noexcept nogil:
    """Engine op: both arrays are free; the copy goes onto the heap. On any engine thread."""
    cdef Copy* copy = <Copy*>param
    cdef Engines* engines = copy.engines
    copy.done = (<OnComplete*>on_complete)[0]
    copy.waiting = clock_ns()
    pthread_mutex_lock(&engines.lock)
    if engines.last is NULL:
        engines.first = copy
    else:
        engines.last.next = copy
    engines.last = copy
    pthread_cond_broadcast(&engines.changed)
    pthread_mutex_unlock(&engines.lock)


cdef Copy* take(Engines* engines) noexcept nogil:
    """The waiting copy of the highest priority, the first of equal ones; NULL without one. The lock is held."""
    cdef:
        Copy* best = engines.first
        Copy* before_best = NULL
        Copy* before = engines.first
    if best is NULL:
        return NULL
    while before.next is not NULL:
        if before.next.priority > best.priority:
            best, before_best = before.next, before
        before = before.next
    if before_best is NULL:
        engines.first = best.next
    else:
        before_best.next = best.next
    if engines.last == best:
        engines.last = before_best
    return best


cdef void* copy_main(void* param) noexcept nogil:
    """A copy thread: one copy after the other, each until its nominal end."""
    cdef:
        Engines* engines = <Engines*>param
        Copy* copy
        OnComplete done
        int64_t end = 0
    wake_in_time()
    pthread_mutex_lock(&engines.lock)
    while True:
        while engines.first is NULL and not engines.stopping:
            pthread_cond_wait(&engines.changed, &engines.lock)
        copy = take(engines)
        if copy is NULL:
            break
        end = max(engines.free[copy.way], copy.waiting, end) + <int64_t>(1e9 * copy.bytes / engines.rate)
        engines.free[copy.way] = end
        pthread_mutex_unlock(&engines.lock)

        if copy.source is not NULL:            # late: who does not wait for the copy finds old bytes
            sleep_until(end - <int64_t>(copy.bytes / HOST_RATE))
            memcpy(copy.target, copy.source, copy.bytes)
        sleep_until(end)
        pthread_mutex_lock(&engines.lock)
        engines.copied[copy.way] += copy.bytes
        pthread_mutex_unlock(&engines.lock)
        done = copy.done
        free(copy)
        done.callback(done.engine, done.param, NULL)

        pthread_mutex_lock(&engines.lock)
        engines.pending -= 1
        pthread_cond_broadcast(&engines.changed)
    pthread_mutex_unlock(&engines.lock)
    return NULL
