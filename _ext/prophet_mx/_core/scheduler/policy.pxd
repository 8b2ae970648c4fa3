"""A worker's limits on what is in flight and unanswered, by its policy, and the rules of when a drain window lets a unit go."""
from libc.stdint cimport int64_t

ctypedef bint (*WindowRule)(Limits*, Steps*, Link*, int64_t, double, double*) noexcept nogil

cdef extern from *:
    """
    #define PROPHET_NO_LIMIT (INT64_C(1) << 62)
    """
    int64_t NO_LIMIT "PROPHET_NO_LIMIT"     # bytes

cdef struct Limits:
    # of the policy
    bint by_arrival                 # units leave as they become ready; else by iteration and the policy's order
    WindowRule window_open
    double block_units              # of a gradient block, in units, most that is in flight: 0 if the policy predicts none
    bint widens                     # the window widens to the block
    int64_t lead                    # bytes, or 0: derived from each link's rate
    bint urgent_passes              # an urgent unit may pass the lead limit
    # of the job
    int64_t fixed_window, fixed_lead    # bytes, 0: by the policy
    bint unlimited                  # no lead limit for now
    int64_t unit                    # bytes of the layout's slices, 0 if there are none
    int64_t message                 # bytes that a link carries in the time that a server takes for a message

cdef int read_policy(Limits* limits, policy) except -1
cdef int64_t order_of(policy, int64_t urgency, int64_t size) except? -1
cdef int64_t min_window(Limits* limits, Link* link) noexcept nogil
cdef int64_t lead_limit(Limits* limits, Link* link, int64_t largest) noexcept nogil
cdef bint fits_block(Limits* limits, Steps* steps, Link* link, int64_t size, double t) noexcept nogil
cdef double block_budget(Limits* limits, Steps* steps, Link* link, double t) noexcept nogil
