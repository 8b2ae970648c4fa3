"""An alarm for the time after all Python threads must have ended: from the last exit handler to the end of the process, MXNet may
wait for other workers forever."""
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from .posix cimport clock_gettime, now, pthread_create, pthread_detach, pthread_getcpuclockid, pthread_self, pthread_t, timespec

cdef extern from "<unistd.h>" nogil:
    ssize_t write(int fd, const void* data, size_t size)
    int usleep(unsigned int microseconds)
    void _exit(int code)

cdef double LOOK = 0.25             # seconds between two looks
cdef double WORK = 0.0005           # seconds of a processor's time between two looks, from which on a thread does not only wait

cdef struct Alarm:
    double seconds                  # of waiting
    int clock                       # of the processor's time of the thread that may wait
    int code                        # that the process ends with, -1: it goes on
    size_t size
    char[2048] text


def alarm(double seconds, str text, int code=-1) -> None:
    """If the caller's thread then does nothing but wait for so many seconds, write a line to standard error and, with a ``code``, end the
    process with it. While it works, as the interpreter does at its end, for seconds on a busy machine, it waits for nobody.

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
    it.seconds = seconds
    it.code = code
    it.size = len(line)
    memcpy(it.text, data, it.size)
    if pthread_getcpuclockid(pthread_self(), &it.clock) != 0 or pthread_create(&thread, NULL, alarm_thread, it) != 0:
        free(it)
        raise OSError("the thread of an alarm could not be started")
    pthread_detach(thread)


cdef void* alarm_thread(void* param) noexcept nogil:
    cdef Alarm* it = <Alarm*>param
    cdef double last = now(), moment, before = worked(it.clock), after, quiet = 0
    while quiet < it.seconds:
        usleep(<unsigned int>(LOOK * 1e6))
        moment = now()
        after = worked(it.clock)
        if after - before >= WORK:
            quiet = 0
        else:
            quiet += min(moment - last, 2 * LOOK)  # a process that was stopped itself has not waited for others
        last, before = moment, after
    write(2, it.text, it.size)
    if it.code >= 0:
        _exit(it.code)
    free(it)
    return NULL


cdef double worked(int clock) noexcept nogil:
    """Seconds of a processor's time; 0 for a thread that has ended."""
    cdef timespec time
    if clock_gettime(clock, &time) != 0:
        return 0
    return time.tv_sec + 1e-9 * time.tv_nsec
