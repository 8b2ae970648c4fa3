"""Medians and ratios with bootstrap intervals."""

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.comparison.summaries import of_median, of_paired_ratio

TIMES = st.lists(st.floats(1, 1000), min_size=1, max_size=9)


@given(TIMES)
def test_an_interval_is_about_the_median_and_within_what_was_measured(times):
    interval = of_median(times)
    assert interval.median == pytest.approx(statistics.median(times))
    assert min(times) <= interval.low <= interval.median <= interval.high <= max(times)
    assert of_median(list(times)) == interval  # the draws are the same ones


@given(TIMES, st.floats(0.1, 10))
def test_an_interval_has_the_unit_of_the_times(times, factor):
    assert of_median([factor * time for time in times]) == pytest.approx([factor * value for value in of_median(times)])


def test_three_jobs_give_their_range_and_more_jobs_less():
    assert of_median([10, 12, 11]) == (11, 10, 12)
    rng = random.Random(1)
    jobs = [rng.gauss(100, 10) for _ in range(200)]
    interval = of_median(jobs)
    assert 2 < interval.high - interval.low < 8  # 2 x 1.96 x 1.25 x 10 / sqrt(200) = 3.5


def test_about_95_of_100_intervals_have_the_true_median_in_them():
    rng = random.Random(2)
    hits = sum(100 in of_median([rng.gauss(100, 10) for _ in range(25)]) for _ in range(80))
    assert 70 <= hits <= 79


@given(st.lists(st.floats(1, 1000), min_size=3, max_size=7), st.floats(0.5, 2))
def test_what_slows_a_round_cancels_out_of_a_paired_ratio(rounds, ratio):
    found = of_paired_ratio([ratio * time for time in rounds], rounds)
    assert found == pytest.approx((ratio, ratio, ratio))


def test_rounds_that_only_one_method_has_are_left_out():
    assert of_paired_ratio([2.0, None, 50.0], [1.0, 5.0, None]) == (2, 2, 2)
    assert of_paired_ratio([None], [1.0]) is None
    with pytest.raises(ValueError, match="no median"):
        of_median([])
