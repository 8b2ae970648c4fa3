"""Squares of a gradient's parts, added up in the order in which PyTorch adds those of the whole."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_mx._core import SUMS, add_squares

LANES = 8


def of_the_whole(values):
    """Eight sums, each of every eighth square, and what is left at the end."""
    squares, full = values * values, len(values) // LANES * LANES
    sums = np.zeros(SUMS, np.float32)
    for start in range(0, full, LANES):
        sums[:LANES] += squares[start : start + LANES]
    sums[LANES : LANES + len(values) - full] = squares[full:]
    return sums


@given(st.integers(0, 2**32 - 1), st.integers(1, 300), st.lists(st.floats(0, 1), max_size=5))
def test_parts_give_the_bits_of_the_whole(seed, count, cuts):
    values = np.random.default_rng(seed).standard_normal(count).astype(np.float32)
    sums = np.zeros(SUMS, np.float32)
    places = [0, *sorted(int(cut * count) for cut in cuts), count]
    for start, stop in zip(places, places[1:]):
        add_squares(values[start:stop], start, count, sums)
    assert sums.tobytes() == of_the_whole(values).tobytes()


@pytest.mark.parametrize("values, first, size, sums", [(9, 0, 8, SUMS), (4, 5, 8, SUMS), (4, -1, 8, SUMS), (4, 0, 8, SUMS - 1)])
def test_what_does_not_fit_is_refused(values, first, size, sums):
    with pytest.raises(ValueError, match=f"elements {first} to {first + values} of {size}, and {sums} sums"):
        add_squares(np.zeros(values, np.float32), first, size, np.zeros(sums, np.float32))
