"""The copy engines of an emulated device: a copy between the device and the host takes its bytes / rate, and next to no CPU.

Contract: a copy is one engine op, which depends on its two arrays. When it runs, on any engine thread, it goes onto the engines' heap.
THREADS threads, as MXNet gives a GPU (MXNET_GPU_COPY_NTHREADS), take the copy of the highest priority, the first of equal ones first. Each
sleeps until the copy's nominal end, shortly before which it copies the bytes. The device makes one copy at a time each way, so a second one
the same way begins when that has ended. The delay of waking up does not add up. Everything below runs without the GIL; the lock guards the
heap and the times, and no call into MXNet is made under it.

The device's arrays are ordinary arrays on the CPU that were declared. MXNet's own copies of them are found by standing in front of the
two functions through which prophet_mx asks for them: the copier's pushpull, which becomes a copy of this device, and the store's pushpull,
whose values first come into the array, as MXNet copies them, and are then on their way to the device.
"""
from libc.stdint cimport int64_t

from prophet_mx._core.engine cimport OnComplete
from prophet_mx._core.posix cimport pthread_cond_t, pthread_mutex_t, pthread_t

cdef enum:
    THREADS = 2

cdef struct Copy:
    Engines* engines
    Copy* next                                 # waiting, in the order in which they came
    OnComplete done
    const char* source                         # NULL: the bytes are there already
    char* target
    int64_t bytes
    int64_t waiting                            # ns: when it came onto the heap
    int way, priority

cdef struct Engines:
    pthread_t[THREADS] threads
    pthread_mutex_t lock
    pthread_cond_t changed
    Copy* first
    Copy* last
    double rate                                # bytes/s each way
    int64_t[2] free                            # ns: when the last copy each way ends
    int64_t pending                            # copies pushed and not completed
    int64_t[2] copied                          # bytes each way
    bint stopping
