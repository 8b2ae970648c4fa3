"""An alarm for the time after all Python threads must have ended: from the last exit handler to the end of the process, MXNet may
wait for other workers forever."""
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from .posix cimport now, pthread_create, pthread_detach, pthread_t

cdef extern from "<unistd.h>" nogil:
    ssize_t write(int fd, const void* data, size_t size)
    unsigned int sleep(unsigned int seconds)
    void _exit(int code)

cdef struct Alarm:
    double until                    # on the monotonic clock
    int code                        # that the process ends with, -1: it goes on
    size_t size
    char[2048] text


def alarm(double seconds, str text, int code=-1) -> None:
    """If the process still lives in so many seconds, write a line to standard error and, with a ``code``, end the process with it.

    A native thread does this: it needs no interpreter. It cannot be called back.

    Raises
    ------
    OSError
        the thread could not be started.
    """
    cdef bytes line = text.encode("utf-8")[:2000] + b"\n"
    cdef const char* data = line
    cdef pthread_t thread
    cdef Alarm* it = <Alarm*>malloc(sizeof(Alarm))
    if it == NULL:
        raise MemoryError()
    it.until = now() + seconds
    it.code = code
    it.size = len(line)
    memcpy(it.text, data, it.size)
    if pthread_create(&thread, NULL, alarm_thread, it) != 0:
        free(it)
        raise OSError("the thread of an alarm could not be started")
    pthread_detach(thread)


cdef void* alarm_thread(void* param) noexcept nogil:
    cdef Alarm* it = <Alarm*>param
    while now() < it.until:
        sleep(1)
    write(2, it.text, it.size)
    if it.code >= 0:
        _exit(it.code)
    free(it)
    return NULL
