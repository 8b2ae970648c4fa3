"""Copies between a caller's arrays and a parameter's own, on MXNet's engine, by its public functions alone.

A copy is a pushpull of a local store with one device: MXNet's own copy, which takes any device and any internal layout, with the
caller's priority. MXNet's operator for copies always has priority 0, and costs twice as much to push. On a GPU a copy waits in the device's
own heap of copies, by priority; on a CPU it waits with all other operators, first in, first out.

Two threads make all copies of a GPU, both ways. While both copy gradients, a value that is back would wait, and with it the layer that it
is for. So values have a higher priority than any gradient.

Part of an array can be copied only if the array is plain: element i lies at place i of its memory. MKLDNN's operators put arrays into
layouts of their own, and nothing tells which. They run on CPUs alone. So an array on a GPU is plain, and if MXNet was built without MKLDNN
every dense array is; any other is copied as a whole, which MXNet then puts into order.
"""
from libc.stdint cimport int64_t

cdef enum:
    VALUES_FIRST = 1 << 20          # more than what the priorities of one job's parameters differ by
    MAX_PRIORITY = 2147483647

cdef inline int of_values(int priority) noexcept nogil:
    """The priority of a copy to the caller's array, for a caller's priority."""
    return priority + VALUES_FIRST if priority <= MAX_PRIORITY - VALUES_FIRST else MAX_PRIORITY

cdef int copy_array(void* source, void* target, int priority) except -1
cdef bint is_plain(void* array) except -1
cdef int copy_part(void* array, int64_t elements, int64_t start, int64_t stop, void* own, bint into_own, int priority) except -1
