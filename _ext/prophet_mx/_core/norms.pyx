"""The 2-norm of a gradient whose parts are on several ranks, with the bits that ``torch.linalg.vector_norm`` finds for the whole.

On x86-64 that function adds up squares in as many sums as a vector has elements, then these sums, and then the squares of what is left at
the end. What has been added up of the first part is all that the second needs. Whoever uses this compares the two first.
"""

cdef enum:
    LANES = 8

SUMS = 2 * LANES - 1  # the sums, and the squares of up to LANES - 1 elements at the end


def add_squares(const float[::1] values, Py_ssize_t first, Py_ssize_t size, float[::1] sums) -> None:
    """Add the squares of a part of a gradient to ``sums``, which has SUMS elements, and has those of all elements before this part.

    ``first`` is the place of the part's first element in the gradient, which has ``size`` elements.
    """
    cdef Py_ssize_t count = values.shape[0], in_lanes = max(0, min(count, size // LANES * LANES - first)), index = 0
    cdef const float* value
    cdef float[LANES] lane
    cdef int k
    if sums.shape[0] != SUMS or first < 0 or first + count > size:
        raise ValueError(f"elements {first} to {first + count} of {size}, and {sums.shape[0]} sums")
    with nogil:
        while index < in_lanes and (first + index) % LANES:
            sums[(first + index) % LANES] += values[index] * values[index]
            index += 1
        for k in range(LANES):
            lane[k] = sums[k]
        while index + LANES <= in_lanes:
            value = &values[index]
            for k in range(LANES):
                lane[k] += value[k] * value[k]
            index += LANES
        for k in range(LANES):
            sums[k] = lane[k]
        while index < in_lanes:
            sums[(first + index) % LANES] += values[index] * values[index]
            index += 1
        while index < count:
            sums[LANES + first + index - size // LANES * LANES] = values[index] * values[index]
            index += 1
