"""The text of a timeline's events: see events.pxd. No Python object is made here."""
from libc.stdint cimport int64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport realloc

cpdef enum:                         # rows of the worker's process in the trace; a link's row is LINK_ROW + its index
    ITERATION_ROW = 1
    STEP_ROW = 2
    GAP_ROW = 3
    LINK_ROW = 10
    LABEL_MAX = 160                 # characters of a slice's name, as JSON
    SLICE_MAX = 512                 # of one slice up to its arguments, at most
    TEXT_MAX = 4096                 # of one event's text, which is up to four slices


cdef Py_ssize_t format_events(Stamp* stamp, TimelineEvent* events, int n, const char** names, int n_names, char** text) noexcept nogil:
    """JSON of n events in memory that the caller frees; its length, -1 without memory."""
    cdef Py_ssize_t used = 0, size = 0
    cdef void* p
    cdef int i
    for i in range(n):
        if size - used < TEXT_MAX:
            size += size // 2 + 64 * TEXT_MAX
            p = realloc(text[0], size)
            if p == NULL:
                return -1
            text[0] = <char*>p
        used += format_event(stamp, &events[i], names, n_names, text[0] + used)
    return used


cdef int slice(Stamp* stamp, char* text, const char* name, int process, int row, double begin, double end,
               int64_t iteration) noexcept nogil:
    """A slice up to its arguments, which the caller ends with '}}'; ``name`` is a JSON text."""
    return snprintf(text, SLICE_MAX, b',\n{"ph":"X","name":%.*s,"pid":%d,"tid":%d,"ts":%ld,"dur":%ld,"args":{"iteration":%ld',
                    LABEL_MAX, name, process, row, us(stamp, begin), us(stamp, end) - us(stamp, begin), <long>iteration)


cdef int format_event(Stamp* stamp, TimelineEvent* event, const char** names, int n_names, char* text) noexcept nogil:
    cdef int n = 0
    cdef double* times = event.times
    cdef int64_t* numbers = event.numbers
    cdef int units = stamp.process + 1, row = event.index + 1
    cdef const char* name = b'"unit"'
    if event.kind == UNIT_EVENT:
        if event.index < n_names:
            name = names[event.index]
        n += slice(stamp, text + n, b'"wait"', units, row, times[0], times[1], event.iteration)
        n += snprintf(text + n, 64, b',"step":%ld}}', <long>numbers[1])
        n += slice(stamp, text + n, b'"wire"', units, row, times[1], times[3], event.iteration)
        if numbers[0] > 0:
            n += snprintf(text + n, 64, b',"block":%ld}}', <long>numbers[0])
        else:
            n += snprintf(text + n, 64, b'}}')
        n += slice(stamp, text + n, b'"answer"', units, row, times[3], times[4], event.iteration)
        n += snprintf(text + n, 64, b'}}')
        n += slice(stamp, text + n, name, stamp.process, LINK_ROW + <int>numbers[2], times[2], times[3], event.iteration)
        n += snprintf(text + n, 64, b'}}')
    elif event.kind == UNPACK_EVENT:
        n += slice(stamp, text, b'"unpack"', units, row, times[0], times[1], event.iteration)
        n += snprintf(text + n, 64, b'}}')
    elif event.kind == BLOCK_EVENT:
        n += slice(stamp, text, b'"block"', stamp.process, LINK_ROW + event.index, times[0], times[1], event.iteration)
        n += snprintf(text + n, 256, b',"block":%ld,"units":%ld,"bytes":%ld,"step":%ld,"predicted":%ld}}', <long>numbers[0],
                      <long>numbers[1], <long>numbers[2], <long>numbers[3], <long>numbers[4])
    elif event.kind == STEP_EVENT:
        n += slice(stamp, text, b'"step"', stamp.process, STEP_ROW, times[0], times[1], event.iteration)
        n += snprintf(text + n, 128, b',"step":%d,"units":%ld,"bytes":%ld}}', event.index, <long>numbers[0], <long>numbers[1])
    elif event.kind == ITERATION_EVENT:
        n += slice(stamp, text, b'"iteration"', stamp.process, ITERATION_ROW, times[0], times[1], event.iteration)
        n += snprintf(text + n, 64, b'}}')
    elif event.kind == GAP_EVENT:
        n += slice(stamp, text, b'"compute gap"', stamp.process, GAP_ROW, times[0], times[1], event.iteration)
        n += snprintf(text + n, 64, b'}}')
    else:
        n += snprintf(text, TEXT_MAX, b',\n{"ph":"C","name":"link %d","pid":%d,"ts":%ld,"args":{"in flight":%ld,"window":%ld,'
                      b'"unanswered":%ld,"ready units":%ld,"rate":%ld}}', event.index, stamp.process, us(stamp, times[0]),
                      <long>numbers[0], <long>numbers[1], <long>numbers[2], <long>numbers[3], <long>numbers[4])
    return n
