"""What is known of a link, the connection to one server: bytes released and drained, and an estimate of its rate.

The caller passes the time of an event; nothing here reads a clock.
"""
from libc.stdint cimport int64_t

cdef enum:
    IDLE_SLACK = 16384              # in flight up to here counts as an idle link: what a message costs besides payload is estimated

cdef extern from *:
    """
    #define PROPHET_SAMPLE_SECONDS 0.02
    """
    double SAMPLE_SECONDS "PROPHET_SAMPLE_SECONDS"      # busy time that makes one sample of a link's rate

cdef struct Link:
    int64_t released                # bytes released in all, overhead included
    int64_t drained                 # of those, bytes the peer acknowledged
    double rate                     # bytes/s
    double rtt                      # seconds: the path's round trip when idle
    bint measured
    double sample_time              # when `drained` was last set
    double busy_bytes               # of the running rate sample
    double busy_seconds
    bint went_idle                  # within the running rate sample
    bint busy                       # in flight has not been seen at 0 since sample_time
    double backlog_since            # statistics: since when there has been something to send; -1 if there is nothing
    double backlog_seconds
    int64_t backlog_start           # `drained` at backlog_since
    int64_t backlog_bytes

cdef struct Sending:                # the time in which any link has bytes in flight
    int busy_links
    double since                    # since when there have been any
    double seconds                  # and how long there were before


cdef inline int64_t in_flight(Link* link) noexcept nogil:
    return link.released - link.drained


cdef inline double sending_until(Sending* sending, double t) noexcept nogil:
    """Seconds until now in which any link was busy."""
    return sending.seconds + (t - sending.since if sending.busy_links > 0 else 0)


cdef inline void set_busy(Link* link, Sending* sending, bint busy, double t) noexcept nogil:
    """Whether the link has bytes in flight; counts the time in which any link has."""
    if link.busy == busy:
        return
    link.busy = busy
    sending.busy_links += 1 if busy else -1
    if busy and sending.busy_links == 1:
        sending.since = t
    elif sending.busy_links == 0:
        sending.seconds += t - sending.since


cdef inline void link_released(Link* link, Sending* sending, int64_t size, double t) noexcept nogil:
    """So many bytes go onto the link now."""
    if in_flight(link) <= IDLE_SLACK:
        link.sample_time = t                    # the link was idle until now
        set_busy(link, sending, True, t)
    link.released += size


cdef inline void link_drained(Link* link, Sending* sending, int64_t total, double t) noexcept nogil:
    """The link's peer has acknowledged `total` bytes since the start."""
    cdef int64_t fresh
    if total > link.released:
        total = link.released
    fresh = total - link.drained
    if fresh > 0:
        link.drained = total
    else:
        fresh = 0
    link_measure(link, sending, fresh, t)


cdef inline void link_assume_drained(Link* link, Sending* sending, int64_t total, double t) noexcept nogil:
    """It is known that `total` bytes have drained, but not when: they do not count for the rate."""
    if total > link.drained:
        link.drained = total
    link.sample_time = t
    set_busy(link, sending, in_flight(link) > IDLE_SLACK, t)


cdef inline void link_measure(Link* link, Sending* sending, int64_t fresh, double t) noexcept nogil:
    """Follow the rate: `fresh` bytes have drained since the last sample. Only time in which the link was busy counts."""
    cdef double rate
    if t <= link.sample_time:
        return
    if link.busy:
        link.busy_bytes += fresh
        link.busy_seconds += t - link.sample_time
    link.sample_time = t
    set_busy(link, sending, in_flight(link) > IDLE_SLACK, t)
    if not link.busy:
        link.went_idle = True                   # at an unknown time before t: the sample is a lower limit
    if link.busy_seconds >= SAMPLE_SECONDS:
        rate = link.busy_bytes / link.busy_seconds
        if rate > 0 and (rate > link.rate or not link.went_idle):
            link.rate = 0.8 * link.rate + 0.2 * rate if link.measured else rate
            link.measured = True
        link.busy_bytes = link.busy_seconds = 0
        link.went_idle = not link.busy


cdef inline void backlog_begins(Link* link, double t) noexcept nogil:
    """Statistics: there is something to send."""
    if link.backlog_since < 0:
        link.backlog_since = t
        link.backlog_start = link.drained


cdef inline void backlog_may_end(Link* link, bint waiting, double t) noexcept nogil:
    """Statistics: close a time of backlog that has ended; `waiting`: units of the link are ready and held back."""
    if link.backlog_since >= 0 and not waiting and in_flight(link) <= IDLE_SLACK:
        link.backlog_seconds += t - link.backlog_since
        link.backlog_bytes += link.drained - link.backlog_start
        link.backlog_since = -1
