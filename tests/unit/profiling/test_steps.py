"""Steps found in ready times, and averages over iterations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_mx.errors import ProfileError
from prophet_mx.profiling.gradient_profile import average_iterations, detect_steps
from prophet_mx.profiling.steps import move_towards

MILLISECONDS = st.integers(0, 10**6)
READY = st.lists(MILLISECONDS, min_size=1, max_size=40)


def test_steps_are_the_bursts_that_the_gaps_separate():
    assert detect_steps([441, 440, 202, 201, 200, 1, 0]) == ((5, 6), (2, 3, 4), (0, 1))


def test_a_gap_of_twice_the_mean_does_not_yet_start_a_step():
    assert detect_steps([0, 1, 2, 3, 9]) == ((0, 1, 2, 3), (4,))  # mean 2.25, gap 6
    assert detect_steps([0, 1, 2, 6]) == ((0, 1, 2, 3),)  # mean 2, gap 4
    assert detect_steps([0, 1, 2, 3, 4, 5, 8]) == ((0, 1, 2, 3, 4, 5), (6,))  # mean 1.33, gap 3


@pytest.mark.parametrize("times", [[5.0], [2.0, 2.0, 2.0, 2.0], [0.0, 7.0], [0.0, 1.0, 2.0, 3.0, 4.0]])
def test_without_uneven_gaps_there_is_one_step(times):
    assert detect_steps(times) == (tuple(range(len(times))),)


@given(READY)
def test_steps_partition_the_gradients_and_keep_their_order(times):
    steps = detect_steps(times)
    assert sorted(index for step in steps for index in step) == list(range(len(times)))
    for step, later in zip(steps, steps[1:]):
        assert max(times[index] for index in step) < min(times[index] for index in later)


@given(READY, st.integers(1, 1000), st.integers(-(10**6), 10**6))
def test_steps_depend_neither_on_the_clock_nor_on_the_speed(times, factor, shift):
    assert detect_steps([factor * time + shift for time in times]) == detect_steps(times)


@given(st.lists(st.integers(1, 10), min_size=3, max_size=8), st.integers(0, 9))
def test_far_apart_bursts_are_found_exactly(lengths, noise):
    # Three or more in each burst keep the mean gap under half the distance of the bursts.
    times, expected = [], []
    for burst, length in enumerate(lengths):
        expected.append(tuple(range(len(times), len(times) + length + 2)))
        times += [1000 * burst + noise * place / 100 for place in range(length + 2)]
    assert detect_steps(times) == tuple(expected)


def test_a_gradient_that_was_never_ready_joins_the_step_of_its_more_urgent_neighbour():
    assert detect_steps([100, None, 101, 1, None, 0]) == ((3, 4, 5), (0, 1, 2))
    assert detect_steps([None, 100, 101, 1, 0]) == ((3, 4), (0, 1, 2))


@pytest.mark.parametrize("times", [[], [None, None], [0.0, float("nan")], [0.0, float("inf")], [0.0, "1"], [True, 0.0]])
def test_ready_times_that_are_no_times_are_rejected(times):
    with pytest.raises(ProfileError):
        detect_steps(times)


def test_the_average_is_not_moved_by_one_odd_iteration():
    usual = [30.0, 20.0, 10.0, 0.0]
    ready, spread = average_iterations([usual, [930.0, 20.0, 10.0, 0.0], usual])
    assert ready == usual and spread == [0.0] * 4


def test_iterations_are_compared_whenever_they_began():
    ready, _ = average_iterations([[7.0, 5.0, 4.0], [1007.0, 1005.0, 1004.0]])
    assert ready == [3.0, 1.0, 0.0]


def test_an_iteration_without_its_usual_first_gradient_does_not_shift_the_others():
    ready, _ = average_iterations([[30.0, 20.0, 10.0, 0.0], [30.0, 20.0, 10.0, None], [30.0, 20.0, 10.0, None]])
    assert ready == [30.0, 20.0, 10.0, 0.0]


def test_a_gradient_that_no_iteration_has_stays_unknown():
    ready, spread = average_iterations([[2.0, None, 0.0], [2.0, None, 0.0]])
    assert ready == [2.0, None, 0.0] and spread == [0.0, None, 0.0]


def test_spread_tells_how_much_a_gradient_varies():
    samples = [[100.0 + wobble, 50.0, 40.0, 0.0] for wobble in (-2.0, -1.0, 0.0, 1.0, 2.0)]
    _, spread = average_iterations(samples)
    assert spread[0] == pytest.approx(1.4826) and spread[1:] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("samples", [[], [[]], [[None]], [[1.0, 2.0], [1.0]], [[1.0, float("nan")]]])
def test_samples_that_say_nothing_are_rejected(samples):
    with pytest.raises(ProfileError):
        average_iterations(samples)


@pytest.mark.parametrize("odd, moved", [(20.0, 99.4), (180.0, 100.6), (98.0, 99.8)])
def test_one_odd_iteration_moves_a_gradient_by_its_spread_at_most_whether_it_is_early_or_late(odd, moved):
    ready, spread = move_towards([100.0, 20.0, 10.0, 0.0], [2.0] * 4, [odd, 20.0, 10.0, 0.0], 0.1)
    assert ready == pytest.approx([moved, 20.0, 10.0, 0.0]) and 2 < spread[0] < 2.6
