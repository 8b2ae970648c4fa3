"""MXNet's C functions: see mxapi.pxd."""
from libc.stdint cimport int64_t, uintptr_t

MXNET_FUNCTIONS = ("MXGetLastError", "MXEnginePushAsyncND", "MXAutogradSetIsRecording", "MXNDArrayGetShapeEx64",
                   "MXNDArrayGetDType", "MXNDArrayGetStorageType", "MXNDArrayGetContext", "MXNDArrayReshape64", "MXNDArraySlice64",
                   "MXNDArrayFree", "MXNDArrayGetData",
                   "MXKVStorePush", "MXKVStorePushEx", "MXKVStorePushPull", "MXKVStorePushPullEx")


cdef object mxnet_error = RuntimeError          # what a failed call raises


def load_mxnet(dict addresses, type error not None, size_t copier) -> None:
    """Take MXNet's functions: ``addresses`` maps each name of MXNET_FUNCTIONS to its address in the loaded library; a failed call raises
    ``error``, which is MXNet's own. ``copier`` is the handle of a 'device' store with key 0, which is never freed."""
    cdef void** functions = <void**>&MX
    global mxnet_error
    mxnet_error = error
    for i, name in enumerate(MXNET_FUNCTIONS):
        functions[i] = <void*><uintptr_t>addresses[name]
    MX.copier = <void*>copier


def array_shape(size_t array) -> tuple:
    """The shape of the array with this handle, safe in a signal handler.

    MXNet returns shapes in memory of the thread. A handler that reads ``array.shape`` can change the one that the interrupted code is
    reading. This memory is another one than that of ``array.shape``, and no handler runs between the call and the copy.
    """
    cdef:
        int dimensions
        const int64_t* shape
    need_mxnet()
    mx_check(MX.array_shape(<void*>array, &dimensions, &shape))
    return tuple([shape[i] for i in range(dimensions)])


cdef int need_mxnet() except -1:
    """RuntimeError before load_mxnet()."""
    if MX.engine_push_async_nd == NULL:
        raise RuntimeError("MXNet's functions are not known yet: call prophet_mx.mxnet.api.bind() first")
    return 0


# Each of MXNet's functions above returns a code, whatever happens inside. The completion of an op does not: an exception of MXNet, in C++,
# would go through our frames, past locks that they hold and gates that they were about to open, to MXNet's own handler. That completes the
# op once more, though it may be freed by then, and ends the process. So the process ends here, with a line that says why.
cdef extern from *:
    """
    #include <stdlib.h>
    #include <unistd.h>

    static void prophet_unwound(const int* completing) {
        static const char text[] =
            "prophet_mx: MXNet failed to complete an operation, perhaps for want of threads or memory; the process ends\\n";
        if (*completing) {
            ssize_t written = write(2, text, sizeof(text) - 1);
            (void)written;
            abort();
        }
    }

    static inline void prophet_complete(void (*callback)(void*, void*, const void*), void* engine, void* param) {
        int completing __attribute__((cleanup(prophet_unwound))) = 1;       // runs when an exception passes, by -fexceptions
        callback(engine, param, NULL);
        completing = 0;
    }
    """
    void prophet_complete(void (*callback)(void*, void*, const void*) noexcept nogil, void* engine, void* param) noexcept nogil


cdef inline void finish_op(OnComplete* op) noexcept nogil:
    """Complete an op; under the driver's lock too. Does not come back if MXNet cannot."""
    prophet_complete(op.callback, op.engine, op.param)


cdef int mx_check(int code) except -1:
    """Raise MXNet's own error for a call that returned non-zero."""
    if code != 0:
        raise mxnet_error((<bytes>MX.get_last_error()).decode("utf-8", "replace"))
    return 0
