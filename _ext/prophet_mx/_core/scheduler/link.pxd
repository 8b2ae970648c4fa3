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
    double SAMPLE_SECONDS "PROPHET_SAMPLE_SECONDS"      # busy time that makes one sample of a link's rate, at the least

cdef enum:
    SAMPLE_TRIPS = 2                # and round trips: acknowledgements of what left together come together

cdef struct Link:
    int64_t released                # bytes released in all, overhead included
    int64_t drained                 # of those, bytes the peer acknowledged
    double rate                     # bytes/s
    double seen                     # the best rate of recent samples: it falls slowly, where `rate` is not lowered; 0 before the first
    double rtt                      # seconds: the path's round trip when idle
    bint measured
    double sample_time              # when `drained` was last set, or is to be set first after the link was idle
    double busy_bytes               # of the running rate sample
    double busy_seconds
    bint starved                    # within the running rate sample: the link had nothing to carry at times
    int64_t gap                     # `released` when too little was last in flight: the link may have rested after this byte; -1 none
    bint busy                       # in flight has not been seen at 0 since sample_time
    double backlog_since            # statistics: since when there has been something to send; -1 if there is nothing
    double backlog_seconds
    int64_t backlog_start           # `drained` at backlog_since
    int64_t backlog_bytes

cdef struct Activity:               # the time in which any link has bytes in flight
    int busy_links
    double since                    # since when there have been any
    double seconds                  # and how long there were before


cdef inline int64_t in_flight(Link* link) noexcept nogil:
    return link.released - link.drained


cdef inline double active_until(Activity* activity, double t) noexcept nogil:
    """Seconds until now in which any link was busy."""
    return activity.seconds + (t - activity.since if activity.busy_links > 0 else 0)


cdef inline void set_busy(Link* link, Activity* activity, bint busy, double t) noexcept nogil:
    """Whether the link has bytes in flight; counts the time in which any link has."""
    if link.busy == busy:
        return
    link.busy = busy
    activity.busy_links += 1 if busy else -1
    if busy and activity.busy_links == 1:
        activity.since = t
    elif activity.busy_links == 0:
        activity.seconds += t - activity.since


cdef inline void link_released(Link* link, Activity* activity, int64_t size, double t) noexcept nogil:
    """So many bytes go onto the link now."""
    cdef double path = min(link.rate, link.seen if link.seen > 0 else link.rate) * link.rtt     # bytes that are on their way in a full path
    cdef bint far = path > IDLE_SLACK
    if in_flight(link) <= IDLE_SLACK:
        link.sample_time = t + (link.rtt if far else 0)     # the link was idle until now: a far peer acknowledges nothing before
        set_busy(link, activity, True, t)
    elif far and in_flight(link) <= IDLE_SLACK + path:
        link.gap = link.released
    link.released += size


cdef inline void link_drained(Link* link, Activity* activity, int64_t total, double t) noexcept nogil:
    """The link's peer has acknowledged `total` bytes since the start."""
    cdef int64_t fresh
    if total > link.released:
        total = link.released
    fresh = total - link.drained
    if fresh > 0:
        if link.drained <= link.gap:
            link.starved = True
        link.drained = total
    else:
        fresh = 0
    link_measure(link, activity, fresh, t)


cdef inline void link_assume_drained(Link* link, Activity* activity, int64_t total, double t) noexcept nogil:
    """It is known that `total` bytes have drained, but not when: they do not count for the rate."""
    if total > link.drained:
        link.drained = total
    if t > link.sample_time:
        link.sample_time = t
    set_busy(link, activity, in_flight(link) > IDLE_SLACK, t)


cdef inline void link_measure(Link* link, Activity* activity, int64_t fresh, double t) noexcept nogil:
    """Follow the rate: `fresh` bytes have drained since the last sample. Only time in which the link was busy counts.

    A sample is only a lower limit of the rate if the link starved: nothing was ready, or the window or the lead limit held back what was.
    Such a sample never lowers the estimate. The window follows from the estimate, so one that is too small would make itself smaller. A
    link does not starve while more is in flight than its rate times its round trip: the rest then waits for the link. Here the rate is
    `seen` if that is less than the estimate, as with an estimate that is too high every link would seem to starve.

    A far link that starved and still carried more than the estimate says has an estimate that holds it back. The window grows with the
    estimate by a little at each sample, so such samples count more than others.
    """
    cdef double rate, weight
    if t <= link.sample_time:
        return
    if link.busy:
        link.busy_bytes += fresh
        link.busy_seconds += t - link.sample_time
    link.sample_time = t
    set_busy(link, activity, in_flight(link) > IDLE_SLACK, t)
    if not link.busy:
        link.starved = True                     # since an unknown time before t
    if link.busy_seconds >= SAMPLE_SECONDS and link.busy_seconds >= SAMPLE_TRIPS * link.rtt:
        rate = link.busy_bytes / link.busy_seconds
        link.seen = max(rate, 0.9 * (link.seen if link.seen > 0 else link.rate))
        if rate > 0 and (rate > link.rate or not link.starved):
            weight = 0.5 if link.starved and rate * link.rtt > IDLE_SLACK else 0.2
            link.rate += (rate - link.rate) * (weight if link.measured else 1)
            link.measured = True
        link.busy_bytes = link.busy_seconds = 0
        link.starved = not link.busy


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
