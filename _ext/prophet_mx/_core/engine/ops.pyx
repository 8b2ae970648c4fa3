"""The native ops that go onto MXNet's engine around a request of the store, and the contexts that they run in.

Each push_ function pushes one op and returns at once; -1 with MXNet's error if the engine refuses it. An op's function runs later, on
a thread of the engine, and owns what was allocated for it. Ops run even if the producer of what they wait for failed, or a unit would be
held forever. But a gate, and the hold of a group's member, are skipped as the request behind them is: what MXNet fails to compute is not
sent. The program may catch the error, and MXNet then forgets it everywhere. A gate that was still held would let the request go, with what
the buffer has from before.
"""
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

ctypedef void (*deleter_fn)(void*) noexcept nogil

cdef enum:
    OWN_DEVICE = 99                 # a device id that no program has: nothing is ever placed there

# An op that is ready only after it was pushed runs in the one FIFO thread of its device id. That of cpu(0) has the store's sends in it and,
# in a job on CPUs, all of the program's operators; so ours have a device id, and with it a thread, of their own. But to wake that thread
# takes about a fifth of the processor time of a whole small key: ops of small units stay in cpu(0)'s. The engine refers to both by address.
# MXNet's profiler has a row of statistics for each core, by the device id of a CPU, and one for all shared memory, whatever the id.
cdef EngineContext OWN_CONTEXT = EngineContext(DEV_CPU_SHARED, OWN_DEVICE)
cdef EngineContext SHARED_CONTEXT = EngineContext(DEV_CPU, 0)
cdef int ASYNC = FN_ASYNC

cdef struct Request:                # of units of one parameter, from the push of an op until it runs
    void* driver
    int first, count                # one, but for an op that landed
    int64_t iteration
    void* half                      # of a unit that travels in 16 bits, or NULL: see half.pyx


cdef int push_code(async_fn function, void* param, EngineContext* context, void** reads, int n_reads, void** writes, int n_writes,
                   const char* name) noexcept nogil:
    """push() without the GIL; MXNet's code."""
    return MX.engine_push_async_nd(function, param, NULL, context, reads, n_reads, writes, n_writes, &ASYNC, 0, name, True)


cdef int push(async_fn function, void* param, EngineContext* context, void** reads, int n_reads, void** writes, int n_writes,
              const char* name) except -1:
    return mx_check(push_code(function, param, context, reads, n_reads, writes, n_writes, name))


cdef int push_skippable(async_fn function, void* param, deleter_fn over, EngineContext* context, void** reads, int n_reads, void** writes,
                        int n_writes, const char* name) except -1:
    """An op that is not run if the producer of what it waits for failed. The engine calls over(param) when the op has completed or was
    skipped: in the thread that completes it, under its locks, or in any other without."""
    return mx_check(MX.engine_push_async_nd(function, param, over, context, reads, n_reads, writes, n_writes, &ASYNC, 0, name, False))


cdef Request* new_request(Driver driver, int first, int count, int64_t iteration) except NULL:
    cdef Request* request = <Request*>malloc(sizeof(Request))
    if request == NULL:
        raise MemoryError()
    request.driver = <void*>driver
    request.first = first
    request.count = count
    request.iteration = iteration
    request.half = NULL
    return request


cdef int push_gate(EngineContext* context, Driver driver, int unit, int64_t iteration, void* array, void** buffer, int buffers) except -1:
    """The gate writes the unit's array, so that the request waits for it; it reads the buffer that a slice is part of."""
    return push_skippable(gate_op, new_request(driver, unit, 1, iteration), free, context, buffer, buffers, &array, 1, b"prophet_gate")


cdef void gate_op(void* run_context, void* on_complete, void* param) noexcept nogil:
    cdef Request* request = <Request*>param
    (<Driver>request.driver).on_gate(request.first, request.iteration, <OnComplete*>on_complete)


cdef int push_done(EngineContext* context, Driver driver, int unit, void* array, bint pulled) except -1:
    """A push only reads the array, so that `done` must write it to come after; a pushpull writes it, and `done` then need not."""
    cdef int reads = 1 if pulled else 0
    return push(done_op, new_request(driver, unit, 1, 0), context, &array, reads, &array, 1 - reads, b"prophet_done")


cdef void done_op(void* run_context, void* on_complete, void* param) noexcept nogil:
    cdef Request* request = <Request*>param
    (<Driver>request.driver).on_answer(request.first)
    free(request)
    complete(on_complete)


cdef int push_landed(Driver driver, int first, int count, int64_t iteration, void** arrays, int n_arrays) except -1:
    """Tells the driver when the values of these units are in all of these arrays, as it reads them."""
    return push(landed_op, new_request(driver, first, count, iteration), &OWN_CONTEXT, arrays, n_arrays, NULL, 0, b"prophet_landed")


cdef void landed_op(void* run_context, void* on_complete, void* param) noexcept nogil:
    cdef Request* request = <Request*>param
    (<Driver>request.driver).on_landed(request.first, request.count, request.iteration)
    free(request)
    complete(on_complete)


cdef int push_join(EngineContext* context, void** arrays, int n_arrays, void* buffer) except -1:
    """The buffer has its value only when every slice has: an op that reads the slices and writes the buffer says so."""
    return push(join_op, NULL, context, arrays, n_arrays, &buffer, 1, b"prophet_join")


cdef int push_split(EngineContext* context, void* buffer, void** arrays, int n_arrays) except -1:
    """The other way round: these parts of the buffer have their values when it has."""
    return push(join_op, NULL, context, &buffer, 1, arrays, n_arrays, b"prophet_split")


cdef int push_fence(EngineContext* context, void** arrays, int n_arrays) except -1:
    """What uses any of these arrays later comes after what has used any of them before, also after what only reads them."""
    return push(join_op, NULL, context, NULL, 0, arrays, n_arrays, b"prophet_fence")


cdef void join_op(void* run_context, void* on_complete, void* param) noexcept nogil:
    complete(on_complete)


cdef inline void complete(void* on_complete) noexcept nogil:
    finish_op(<OnComplete*>on_complete)


# -- arrival -------------------------------------------------------------------------------------------------------------------------

cdef extern from *:
    """
    static int prophet_mark(int* state, int mark) { return __atomic_exchange_n(state, mark, __ATOMIC_ACQ_REL); }
    static int prophet_marked(int* state) { return __atomic_load_n(state, __ATOMIC_ACQUIRE); }
    """
    int prophet_mark(int* state, int mark) nogil
    int prophet_marked(int* state) nogil

cdef enum:
    WAITING = 0
    ARRIVED = 1                     # the op has run
    FORGOTTEN = 2                   # the object is gone


cdef int push_arrival(int* state, void* array) except -1:
    """An op that reads the array and then marks the state, which it and its maker share: the later of the two frees it."""
    state[0] = WAITING
    return push(arrival_op, state, &OWN_CONTEXT, &array, 1, NULL, 0, b"prophet_arrival")


cdef void arrival_op(void* run_context, void* on_complete, void* param) noexcept nogil:
    if prophet_mark(<int*>param, ARRIVED) == FORGOTTEN:
        free(param)
    complete(on_complete)


cdef bint mark_forgotten(int* state) noexcept nogil:
    """The maker is done with the state: whether it is the later of the two."""
    return prophet_mark(state, FORGOTTEN) == ARRIVED


cdef bint has_arrived(int* state) noexcept nogil:
    return prophet_marked(state) == ARRIVED
