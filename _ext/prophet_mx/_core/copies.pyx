"""Copies between a caller's arrays and a parameter's own: see copies.pxd. The caller's thread calls; nothing here waits."""
from libc.stdint cimport int64_t

from .mxapi cimport DEV_GPU, MX, mx_check

cdef bint plain_cpu = False


def cpu_arrays_are_plain(bint plain) -> None:
    """Whether arrays on CPUs are known to be plain; for tests, also where MXNet has MKLDNN but no operator uses it."""
    global plain_cpu
    plain_cpu = plain


def plain(size_t array) -> bool:
    """Whether parts of this array may be copied."""
    return is_plain(<void*>array)


cdef bint is_plain(void* array) except -1:
    cdef int device, number
    mx_check(MX.array_context(array, &device, &number))
    return device == DEV_GPU or plain_cpu


cdef int copy_array(void* source, void* target, int priority) except -1:
    """A whole array, of any layout. The copier refers to the source until the next copy."""
    cdef int key = 0
    return mx_check(MX.kv_pushpull(MX.copier, 1, &key, 1, &key, &source, &target, priority))


cdef int copy_part(void* array, int64_t elements, int64_t start, int64_t stop, void* own, bint into_own, int priority) except -1:
    """Elements start to stop of a plain array into one of our own, or back."""
    cdef:
        void* flat = NULL
        void* part = NULL
        int recording = 0
    MX.autograd_set_recording(0, &recording)         # a view of ours is no part of the caller's autograd graph
    try:
        mx_check(MX.array_reshape(array, 1, &elements, False, &flat))
        mx_check(MX.array_slice(flat, start, stop, &part))
        return copy_array(part, own, priority) if into_own else copy_array(own, part, priority)
    finally:
        if part != NULL:
            MX.array_free(part)
        if flat != NULL:
            MX.array_free(flat)
        if recording:
            MX.autograd_set_recording(1, &recording)
