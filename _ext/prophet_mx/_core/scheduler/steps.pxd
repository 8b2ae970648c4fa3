"""The stepwise pattern: which gradients become ready together, when each step is due, and how far the current iteration has come."""
from libc.stdint cimport int64_t

cdef struct Steps:
    int n_steps, n_gradients
    int* step_of                    # gradient -> step, -1 if it is in none
    double* due                     # step -> seconds after the iteration's first ready gradient
    int64_t iteration               # the newest one, -1 before the first
    int arrived                     # latest step seen in this iteration, -1 none
    double start                    # when the iteration's first gradient became ready


cdef inline int step_of(Steps* steps, int gradient) noexcept nogil:
    """The step of a gradient, -1 if it is in none."""
    return steps.step_of[gradient] if gradient < steps.n_gradients else -1


cdef inline bint steps_ready(Steps* steps, int gradient, int64_t iteration, double t) noexcept nogil:
    """A gradient has become ready: whether it is the first of a new iteration."""
    cdef bint first = iteration > steps.iteration
    if first:
        steps.iteration = iteration
        steps.start = t
        steps.arrived = -1
    if iteration == steps.iteration and step_of(steps, gradient) > steps.arrived:
        steps.arrived = step_of(steps, gradient)
    return first


cdef inline bint steps_to_come(Steps* steps) noexcept nogil:
    """Whether a more urgent step of this iteration is predicted."""
    return steps.arrived + 1 < steps.n_steps


cdef inline double interval(Steps* steps, double t) noexcept nogil:
    """Seconds until the next, more urgent step is due, negative if it is late. There must be one to come."""
    return steps.start + steps.due[steps.arrived + 1] - t
