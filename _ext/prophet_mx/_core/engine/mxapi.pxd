"""MXNet's C functions, as pointers found in the loaded library: no header, no link, no C++ ABI.

Contract: load_mxnet() runs once, with the GIL, before any other use of MX; afterwards MX is only read, from any thread.
"""
from libc.stdint cimport int64_t, uint32_t

# What an engine op receives: completing the op is callback(engine, param, NULL). The object lives on the caller's stack, so
# an op that completes later copies it. Layout valid for MXNet 1.9.x (include/mxnet/engine.h, CallbackOnComplete).
cdef struct OnComplete:
    void (*callback)(void* engine, void* param, const void* error) noexcept nogil
    void* engine
    void* param

# mxnet::Context and mxnet::FnProperty, as MXEnginePushAsyncND reads them.
cdef struct EngineContext:
    int dev_type
    int dev_id

cdef enum:
    DEV_CPU = 1
    DEV_GPU = 2
    DEV_CPU_SHARED = 5              # a CPU's threads, as those of DEV_CPU
    DEFAULT_STORAGE = 0
    FN_ASYNC = 4

ctypedef void (*async_fn)(void* run_context, void* on_complete, void* param) noexcept nogil

cdef struct MXApi:                  # begins with the functions of MXNET_FUNCTIONS, in that order
    const char* (*get_last_error)() noexcept nogil
    int (*engine_push_async_nd)(async_fn, void*, void (*)(void*) noexcept nogil, void*, void**, int, void**, int,
                                const int*, int, const char*, bint) noexcept nogil
    int (*autograd_set_recording)(int, int*) noexcept nogil
    int (*array_shape)(void*, int*, const int64_t**) noexcept nogil         # in memory of the calling thread, until its next call
    int (*array_type)(void*, int*) noexcept nogil
    int (*array_storage)(void*, int*) noexcept nogil
    int (*array_context)(void*, int*, int*) noexcept nogil
    int (*array_reshape)(void*, int, int64_t*, bint, void**) noexcept nogil
    int (*array_slice)(void*, int64_t, int64_t, void**) noexcept nogil
    int (*array_free)(void*) noexcept nogil
    int (*array_data)(void*, void**) noexcept nogil                         # of an array in host memory
    int (*kv_push)(void*, uint32_t, const int*, void**, int) noexcept nogil
    int (*kv_push_ex)(void*, uint32_t, const char**, void**, int) noexcept nogil
    int (*kv_pushpull)(void*, uint32_t, const int*, uint32_t, const int*, void**, void**, int) noexcept nogil
    int (*kv_pushpull_ex)(void*, uint32_t, const char**, uint32_t, const char**, void**, void**, int) noexcept nogil
    void* copier

cdef MXApi MX

cdef int need_mxnet() except -1
cdef int mx_check(int code) except -1
