"""The native ops that go onto MXNet's engine around a request of the store, and the contexts that they run in."""
from libc.stdint cimport int64_t

from .driver cimport Driver
from .mxapi cimport EngineContext

# An op that is ready only after it was pushed runs in the one FIFO thread of its device id. That of cpu(0) has the store's sends in it and,
# in a job on CPUs, all of the program's operators; so ours have a device id, and with it a thread, of their own. But to wake that thread
# takes about a fifth of the processor time of a whole small key: ops of small units stay in cpu(0)'s. The engine refers to both by address.
cdef EngineContext OWN_CONTEXT
cdef EngineContext SHARED_CONTEXT

cdef int push_gate(EngineContext* context, Driver driver, int unit, int64_t iteration, void* array, void** buffer, int buffers) except -1
cdef int push_done(EngineContext* context, Driver driver, int unit, void* array, bint pulled) except -1
cdef int push_landed(Driver driver, int first, int count, int64_t iteration, void** arrays, int n_arrays) except -1
cdef int push_join(EngineContext* context, void** arrays, int n_arrays, void* buffer) except -1
cdef int push_split(EngineContext* context, void* buffer, void** arrays, int n_arrays) except -1
cdef int push_arrival(int* state, void* array) except -1
cdef bint mark_forgotten(int* state) noexcept nogil
cdef bint has_arrived(int* state) noexcept nogil
