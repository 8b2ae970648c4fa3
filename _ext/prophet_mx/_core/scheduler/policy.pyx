"""A worker's limits on what is in flight and unanswered, by its policy, and the rules of when a drain window lets a unit go."""
from libc.math cimport INFINITY

from prophet_mx import sizes
from prophet_mx.policies import POLICIES, Window
from prophet_mx.policies import urgency as by_urgency

cdef double UNIT_SECONDS = sizes.UNIT_SECONDS
cdef double MIN_UNIT = sizes.MIN_UNIT
cdef double MAX_UNIT = sizes.MAX_UNIT

cdef double REACTION = sizes.REACTION
cdef double LEAD_MESSAGES = sizes.LEAD_MESSAGES
cdef double BLOCK_UNITS = 8         # of a block, no more than this is in flight, in units


cdef int read_policy(Limits* limits, policy) except -1:
    """Take a policy's part of the limits; ValueError if there is none of this name."""
    row = row_of(policy)
    limits.by_arrival = row.order is None
    limits.window_open = <WindowRule><size_t>RULES[row.window]
    limits.widens = row.window is Window.BLOCK
    limits.block_units = BLOCK_UNITS if limits.widens else INFINITY if row.window is Window.INTERVAL else 0
    limits.lead = row.lead
    limits.urgent_passes = row.urgent_passes
    return 0


cdef int64_t order_of(policy, int64_t urgency, int64_t size) except? -1:
    """The key by which units are ordered within an iteration, unless the policy orders by arrival: smaller first."""
    order = row_of(policy).order
    return urgency if order is None or order is by_urgency else order(urgency, size)


cdef object row_of(policy):
    row = POLICIES.get(policy)
    if row is None:
        raise ValueError(f"policy={policy!r}: not one of {', '.join(POLICIES)}")
    return row


# -- sizes ---------------------------------------------------------------------------------------------------------------------------

cdef int64_t window_unit(Limits* limits, Link* link) noexcept nogil:
    """The unit that windows and blocks are measured in: a slice, or, where gradients stay whole, what the link carries in a given time."""
    cdef double size = link.rate * UNIT_SECONDS
    if limits.unit > 0:
        return limits.unit
    return <int64_t>(MIN_UNIT if size < MIN_UNIT else MAX_UNIT if size > MAX_UNIT else size)


cdef int64_t min_window(Limits* limits, Link* link) noexcept nogil:
    """Bytes in flight below which the drain window is open: see prophet_mx/sizes.py."""
    if limits.fixed_window > 0:
        return limits.fixed_window
    return <int64_t>(window_unit(limits, link) + link.rate * (link.rtt + REACTION))


cdef int64_t lead_limit(Limits* limits, Link* link, int64_t largest) noexcept nogil:
    """Unanswered bytes above which this worker waits for the others; `largest` is the link's largest unit."""
    cdef int64_t unit, limit
    if limits.unlimited:
        return NO_LIMIT
    if limits.fixed_lead > 0:
        return limits.fixed_lead
    if limits.lead > 0:
        return limits.lead
    unit = window_unit(limits, link)
    limit = 2 * min_window(limits, link) + unit + <int64_t>(LEAD_MESSAGES * limits.message)
    # Of gradients that stay whole, one must be able to leave while the one before it is answered.
    return max(limit, 2 * largest + <int64_t>(link.rate * link.rtt))


cdef bint fits_block(Limits* limits, Steps* steps, Link* link, int64_t size, double t) noexcept nogil:
    """Whether a unit of so many bytes is predicted to drain within the interval, together with what is in flight."""
    return in_flight(link) + size <= interval_bytes(limits, steps, link, t)


cdef double interval_bytes(Limits* limits, Steps* steps, Link* link, double t) noexcept nogil:
    """B * A(i): the bytes that the link carries before the next, more urgent step is due, but no more than may be in flight of a block;
    negative where no interval is predicted."""
    cdef double seconds
    if limits.block_units == 0 or limits.fixed_window > 0 or not steps_to_come(steps):
        return -1
    seconds = interval(steps, t)
    if seconds <= 0:
        return -1
    return min(link.rate * seconds, limits.block_units * window_unit(limits, link))


cdef double block_budget(Limits* limits, Steps* steps, Link* link, double t) noexcept nogil:
    """Bytes in flight up to which the window widens, 0 if it does not. After the last step, what waits is in its final order."""
    if not limits.widens or steps.n_steps == 0 or limits.fixed_window > 0:
        return 0
    if not steps_to_come(steps):
        return limits.block_units * window_unit(limits, link)
    return max(0, interval_bytes(limits, steps, link, t))


# -- rules of the window: whether it lets a unit of so many bytes go; if not, *wake is brought forward to when it may ------------------

cdef bint open_drained(Limits* limits, Steps* steps, Link* link, int64_t size, double t, double* wake) noexcept nogil:
    """Little is in flight."""
    cdef int64_t window = min_window(limits, link)
    cdef double opens
    if in_flight(link) < window:
        return True
    opens = t + (in_flight(link) - window) / link.rate
    if opens < wake[0]:
        wake[0] = opens
    return False


cdef bint open_unless_set(Limits* limits, Steps* steps, Link* link, int64_t size, double t, double* wake) noexcept nogil:
    """Always, unless the job sets a window."""
    return limits.fixed_window == 0 or open_drained(limits, steps, link, size, t, wake)


cdef bint open_for_block(Limits* limits, Steps* steps, Link* link, int64_t size, double t, double* wake) noexcept nogil:
    """Little is in flight, or the unit fits the block."""
    return in_flight(link) + size <= block_budget(limits, steps, link, t) or open_drained(limits, steps, link, size, t, wake)


cdef bint open_for_interval(Limits* limits, Steps* steps, Link* link, int64_t size, double t, double* wake) noexcept nogil:
    """The paper's rule: while steps are to come, what fits the interval; then one by one, in order of priority."""
    if limits.fixed_window > 0:
        return open_drained(limits, steps, link, size, t, wake)
    if steps_to_come(steps) and interval(steps, t) > 0:
        if fits_block(limits, steps, link, size, t):
            return True
        wake[0] = min(wake[0], t + interval(steps, t))      # a step that is late must not hold everything forever
        return False
    if in_flight(link) <= IDLE_SLACK:
        return True
    wake[0] = min(wake[0], t + in_flight(link) / link.rate)
    return False


# A rule is a function above and its line here.
RULES = {Window.DRAIN: <size_t>open_drained, Window.BLOCK: <size_t>open_for_block, Window.INTERVAL: <size_t>open_for_interval,
         Window.NONE: <size_t>open_unless_set}
