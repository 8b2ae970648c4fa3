"""Prophet's gradient block: the units that are predicted to drain within one interval (ICPP 2021, sec. 4).

The paper's objects, and where they are here:

    stepwise pattern    gradients become ready several at once: Steps (steps.pxd), learned in prophet_mx/profiling
    interval A(i)       from step i to step i + 1: interval() (steps.pxd) is what is left of it
    bandwidth B         monitored, of each server's link: Link.rate (link.pxd)
    block assembly      ready units, the most urgent first, that fit B * A(i): fits_block() (policy.pyx), assemble() (decisions.pyx)

The policy prophet-icpp21 does what the paper says. The default, prophet, departs from it:

1. Units leave while little is in flight, block or not, as a wrong prediction would idle the link.
2. Blocks are made of slices and not of whole gradients, as a large one keeps what is urgent waiting.
3. At most eight units of a block are in flight at once, as B is measured too high by a worker that finds a shared link free.
4. After the last step the paper sends gradients one by one; here up to eight units leave at once, as their order is final.
5. The lead limit holds back a worker that runs ahead of the others, as only what all have sent is answered.
"""
from libc.stdint cimport int64_t

cdef struct GradientBlock:          # of one link; its newest one
    int64_t number                  # from 1 over all links, 0 none
    int64_t iteration
    int step                        # i of the interval A(i)
    int64_t predicted               # B * A(i) when it was begun, in bytes
