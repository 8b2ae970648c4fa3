"""Half precision for servers, which have no engine of ours, and for tests. Arrays are given by their addresses; see halves.pxd."""
from libc.stdint cimport int64_t, uint16_t

LARGEST_HALF = 65504.0


def portable(bint on) -> None:
    """Whether this extension converts as on a processor without F16C."""
    global prophet_portable
    prophet_portable = on


def squeeze(size_t values, size_t lost, size_t halves, int64_t count, float limit) -> int:
    """halves = values + lost in 16 bits, within +-limit; lost = what they do not hold. Returns how many sums were beyond the limit."""
    return prophet_squeeze(<const float*>values, <float*>lost, <uint16_t*>halves, count, limit)


def widen(size_t halves, size_t values, int64_t count) -> None:
    """values = halves"""
    prophet_widen(<const uint16_t*>halves, <float*>values, count)


def follow(size_t halves, size_t held, size_t values, int64_t count) -> None:
    """held += halves; values = held"""
    prophet_follow(<const uint16_t*>halves, <float*>held, <float*>values, count)


def change(size_t master, size_t sent, size_t change, int64_t count) -> None:
    """change = master - sent in 16 bits, as a number of 32; sent += change"""
    with nogil:
        prophet_change(<const float*>master, <float*>sent, <float*>change, count)
