"""Every invariant of the scheduler's state."""
from .scheduler cimport BlockScheduler

cdef const char* broken(BlockScheduler s) noexcept nogil
