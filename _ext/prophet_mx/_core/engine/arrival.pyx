"""Whether an array has been written: asked without waiting."""
from libc.stdlib cimport free, malloc


cdef class Arrival:
    """Tells, without ever waiting, whether everything that was to write an array when this was made has been done.

    ``array`` is the handle of an array in the host's memory.
    """
    cdef int* state

    def __cinit__(self, size_t array):
        need_mxnet()
        cdef int* state = <int*>malloc(sizeof(int))
        if state == NULL:
            raise MemoryError()
        try:
            push_arrival(state, <void*>array)
        except BaseException:
            free(state)
            raise
        self.state = state

    def __dealloc__(self):
        if self.state != NULL and mark_forgotten(self.state):
            free(self.state)

    def __bool__(self) -> bool:
        return has_arrived(self.state)
