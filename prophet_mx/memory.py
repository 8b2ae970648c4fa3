"""The worker's memory besides its arrays."""
import ctypes

TIDY_ITERATION = 2              # when what the agreement needed has been freed: the store keeps a slice's first value until its first push


def return_free_memory() -> None:
    """Give freed memory back to the system, once: what lies between pieces in use the C library keeps by itself, and on rank 0, which
    had the servers' values in hand, that is as much as all sliced gradients."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)      # glibc's
    if trim is not None:
        trim(0)
