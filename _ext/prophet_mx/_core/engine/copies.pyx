"""Copies between a caller's arrays and a parameter's own, on MXNet's engine, by its public functions alone.

A copy is a pushpull of a local store with one device: MXNet's own copy, which takes any device and any internal layout, with the
caller's priority. MXNet's operator for copies always has priority 0, and costs twice as much to push. On a GPU a copy waits in the device's
own heap of copies, by priority; on a CPU it waits with all other operators, first in, first out.

Two threads make all copies of a GPU, both ways. While both copy gradients, a value that is back would wait, and with it the layer that it
is for. So values have a higher priority than any gradient.

Part of an array can be copied only if the array is plain: element i lies at place i of its memory. MKLDNN's operators put arrays into
layouts of their own, and nothing tells which. They run on CPUs alone. So an array on a GPU is plain, and if MXNet was built without MKLDNN
every dense array is; any other is copied as a whole, which MXNet then puts into order.

The caller's thread calls; nothing here waits.
"""
from libc.stdint cimport int64_t

cdef enum:
    VALUES_FIRST = 1 << 20          # more than what the priorities of one job's parameters differ by
    MAX_PRIORITY = 2147483647

cdef inline int of_values(int priority) noexcept nogil:
    """The priority of a copy to the caller's array, for a caller's priority."""
    return priority + VALUES_FIRST if priority <= MAX_PRIORITY - VALUES_FIRST else MAX_PRIORITY

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
