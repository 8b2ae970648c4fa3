"""What the emulated runtime promises of streams, events and copies, asked through CUDA's own functions. It ends with 0 if all holds."""

import ctypes
import os
import sys
import time

cuda = ctypes.CDLL("libcudart.so.11.0")
TO_DEVICE, FROM_DEVICE = 1, 2
SIZE = 1 << 16
EARLY = os.environ.get("EMULATED_CUDA_WORK") == "early"


def made(function, *arguments):
    """What a function writes to its first argument."""
    found = ctypes.c_void_p()
    assert getattr(cuda, function)(ctypes.byref(found), *arguments) == 0
    return found


def pinned():
    return made("cudaHostAlloc", ctypes.c_size_t(SIZE), 0)


def copy(to, start, kind, stream, size=SIZE):
    return cuda.cudaMemcpyAsync(to, start, ctypes.c_size_t(size), kind, stream)


def text(pointer):
    return ctypes.string_at(pointer, 3)


def main():
    one, other, event = made("cudaStreamCreate"), made("cudaStreamCreate"), made("cudaEventCreateWithFlags", 0)
    host, back, device = pinned(), pinned(), made("cudaMalloc", ctypes.c_size_t(SIZE))
    ctypes.memmove(host, b"new", 3)
    ctypes.memmove(back, b"old", 3)

    # A copy takes its time, is seen when its stream has been waited for, and not before, or at once.
    begin = time.monotonic()
    assert copy(device, host, TO_DEVICE, one) == 0 and copy(back, device, FROM_DEVICE, one) == 0
    assert text(back) == (b"new" if EARLY else b"old")
    assert time.monotonic() - begin < 0.1  # the caller does not wait
    assert cuda.cudaStreamSynchronize(one) == 0 and text(back) == b"new"
    assert 0.2 <= time.monotonic() - begin < 0.5  # 64 KiB to the device and back, each at 655,360 bytes/s

    # A stream that waits for an event does what comes before the event, and not what comes after it.
    ctypes.memmove(host, b"two", 3)
    assert copy(device, host, TO_DEVICE, one) == 0 and cuda.cudaEventRecord(event, one) == 0
    assert copy(back, device, FROM_DEVICE, one) == 0
    assert cuda.cudaStreamWaitEvent(other, event, 0) == 0
    third = pinned()
    assert copy(third, device, FROM_DEVICE, other) == 0
    assert cuda.cudaStreamSynchronize(other) == 0 and text(third) == b"two"
    assert text(back) == (b"two" if EARLY else b"new")
    assert cuda.cudaDeviceSynchronize() == 0 and text(back) == b"two"

    # From memory that is not pinned the bytes are taken at once; to such memory the call waits.
    pageable = ctypes.create_string_buffer(b"six", SIZE)
    assert copy(device, pageable, TO_DEVICE, one) == 0
    pageable.raw = b"nil".ljust(SIZE, b"\0")
    assert copy(pageable, device, FROM_DEVICE, one) == 0 and pageable.raw[:3] == b"six"

    # Errors: past the end, in the wrong direction, of memory that was freed; the last one can be asked for once.
    assert copy(device, host, TO_DEVICE, one, SIZE + 1) == 1
    assert cuda.cudaPeekAtLastError() == 1 and cuda.cudaGetLastError() == 1 and cuda.cudaGetLastError() == 0
    assert copy(host, device, TO_DEVICE, one) == 1
    assert cuda.cudaFree(device) == 0 and cuda.cudaFree(device) == 1 and copy(device, host, TO_DEVICE, one) == 1
    assert cuda.cudaSetDevice(2) == 101


if __name__ == "__main__":
    sys.exit(main())
