"""MXNet's C functions: see mxapi.pxd."""
from libc.stdint cimport uintptr_t

MXNET_FUNCTIONS = ("MXGetLastError", "MXEnginePushAsyncND", "NNGetOpHandle", "MXImperativeInvoke",
                   "MXAutogradSetIsRecording", "MXNDArrayGetShapeEx64", "MXNDArrayGetDType", "MXNDArrayGetStorageType",
                   "MXKVStorePush", "MXKVStorePushEx", "MXKVStorePushPull", "MXKVStorePushPullEx")


cdef object mxnet_error = RuntimeError          # what a failed call raises


def load_mxnet(dict addresses, type error not None) -> None:
    """Take MXNet's functions: ``addresses`` maps each name of MXNET_FUNCTIONS to its address in the loaded library; a failed call raises
    ``error``, which is MXNet's own."""
    cdef void** functions = <void**>&MX
    global mxnet_error
    mxnet_error = error
    for i, name in enumerate(MXNET_FUNCTIONS):
        functions[i] = <void*><uintptr_t>addresses[name]
    mx_check(MX.get_op_handle(b"_copyto", &MX.op_copyto))


cdef int need_mxnet() except -1:
    """RuntimeError before load_mxnet()."""
    if MX.engine_push_async_nd == NULL:
        raise RuntimeError("MXNet's functions are not known yet: call prophet_mx.mxnet.api.bind() first")
    return 0


cdef int mx_check(int code) except -1:
    """Raise MXNet's own error for a call that returned non-zero."""
    if code != 0:
        raise mxnet_error((<bytes>MX.get_last_error()).decode("utf-8", "replace"))
    return 0


cdef int copy_array(void* source, void* target) noexcept nogil:
    """Push MXNet's own whole-array copy (any device, any internal layout) and return its code. Never blocks."""
    cdef:
        int count = 1, previous = 0, code
        void* inputs[1]
        void* targets[1]
        void** outputs = targets
    inputs[0] = source
    targets[0] = target
    MX.autograd_set_recording(0, &previous)          # a copy of ours is no part of the caller's autograd graph
    code = MX.imperative_invoke(MX.op_copyto, 1, inputs, &count, &outputs, 0, NULL, NULL)
    if previous:
        MX.autograd_set_recording(1, &previous)
    return code
