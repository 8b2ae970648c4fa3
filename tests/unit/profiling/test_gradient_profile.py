"""Profiles: how they follow the iterations, what they say, how they are scaled."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_mx.errors import ProfileError
from prophet_mx.profiling.gradient_profile import Gradient, GradientProfile, detect_steps
from support.profiles import profile_of, profiles


def test_one_odd_iteration_moves_a_profile_little_and_a_lasting_change_moves_it_all_the_way():
    profile = profile_of([30.0, 20.0, 10.0, 0.0])
    late = [30.0, 20.0, 10.0, 0.0]
    late[0] = 3000.0
    assert profile.updated(late, 0.1).gradients[0].ready - 30.0 < 0.1 * late[0] / 10
    for _ in range(200):
        profile = profile.updated([60.0, 40.0, 20.0, 0.0], 0.1)
    assert [g.ready for g in profile.gradients] == pytest.approx([60.0, 40.0, 20.0, 0.0], abs=0.1)


def test_an_update_finds_the_steps_anew():
    profile = profile_of([31.0, 30.0, 1.0, 0.0])
    assert profile.steps == ((2, 3), (0, 1))
    for _ in range(300):
        profile = profile.updated([31.0, 1.5, 1.0, 0.0], 0.2)
    assert profile.steps == ((1, 2, 3), (0,))


def test_an_update_with_the_usual_times_changes_nothing():
    profile = profile_of([30.0, 20.0, 10.0, 0.0])
    assert profile.updated([130.0, 120.0, None, 100.0], 0.5) == profile


def test_an_update_of_a_profile_without_ready_times_takes_them():
    profile = GradientProfile("zoo", [Gradient("a", 4, 1.0, 1.0), Gradient("b", 4, 1.0, 1.0)], [[1], [0]])
    assert [g.ready for g in profile.updated([9.0, 8.0]).gradients] == [1.0, 0.0]


@pytest.mark.parametrize("weight", [0, -0.1, 1.5, float("nan"), None])
def test_a_weight_that_is_no_share_is_rejected(weight):
    with pytest.raises(ProfileError, match="weight"):
        profile_of([1.0, 0.0]).updated([1.0, 0.0], weight)


def test_an_update_of_another_length_is_rejected():
    with pytest.raises(ProfileError, match="2 gradients"):
        profile_of([1.0, 0.0]).updated([1.0, 0.0, 0.0])


# ---- what a profile says


def test_step_times_and_intervals():
    profile = profile_of([441.0, 440.0, 202.0, 201.0, 200.0, 1.0, 0.0])
    assert profile.step_times() == (0.0, 200.0, 440.0)
    assert profile.step_intervals() == (200.0, 240.0)


def test_ready_times_follow_from_compute_times_when_none_were_observed():
    gradients = [Gradient(name, 4, 1.0, backward) for name, backward in zip("abcd", (1.0, 2.0, 4.0, 8.0))]
    profile = GradientProfile("zoo", gradients, [[2, 3], [0, 1]])
    assert profile.backward_ready_times() == (15.0, 15.0, 12.0, 12.0)
    assert profile.ready_times() == (3.0, 3.0, 0.0, 0.0)
    assert profile.step_times() == (0.0, 3.0)
    assert profile.compute_seconds == 19.0


def test_an_unseen_gradient_is_expected_with_its_step():
    profile = profile_of([100.0, None, 101.0, 1.0, 0.0])
    assert profile.ready_times() == (100.0, 100.0, 101.0, 1.0, 0.0)


def test_a_profile_without_compute_times_names_the_first_that_is_missing():
    profile = GradientProfile("half", [Gradient("a", 4, 1.0, 2.0), Gradient("b", 4, 1.0, None)], [[0, 1]])
    for use in (profile.backward_ready_times, lambda: profile.compute_seconds, lambda: profile.scaled(compute=1)):
        with pytest.raises(ProfileError, match="'b'"):
            use()
    with pytest.raises(ProfileError, match="neither"):
        profile.step_times()


def test_scaling_keeps_proportions_and_whole_words():
    gradients = [Gradient("a", 4000, 1.0, 2.0, 6.0, 0.5), Gradient("b", 12, 2.0, 5.0, 0.0, 0.1)]
    scaled = GradientProfile("zoo", gradients, [[0, 1]]).scaled(compute=5.0, size=0.5)
    assert scaled.gradients == (Gradient("a", 2000, 0.5, 1.0, 3.0, 0.25), Gradient("b", 8, 1.0, 2.5, 0.0, 0.05))
    assert scaled.compute_seconds == 5.0


@given(profiles(), st.floats(1e-6, 1e-2))
def test_scaled_sizes_are_never_empty_and_always_whole_words(profile, factor):
    assert all(g.bytes >= 4 and g.bytes % 4 == 0 for g in profile.scaled(size=factor).gradients)


@pytest.mark.parametrize(
    "factors", [{"size": 0}, {"size": -1}, {"size": float("nan")}, {"compute": 0}, {"compute": float("inf")}, {"compute": -1.0}]
)
def test_scaling_by_what_is_no_factor_is_rejected(factors):
    with pytest.raises(ProfileError):
        GradientProfile("zoo", [Gradient("a", 4, 1.0, 1.0)], [[0]]).scaled(**factors)


# ---- files


def test_a_profile_is_extended_by_the_times_of_common_gradients():
    old = GradientProfile.from_samples("job", ["b", "c"], [4, 8], [[0.5, 0.0]] * 3)
    newer = GradientProfile.from_samples("job", ["a", "b", "c"], [2, 4, 8], [[7.7, 7.6, None], [8.7, 8.6, None]])
    extended = old.extended(newer)
    assert [(g.name, g.bytes, round(g.ready, 6)) for g in extended.gradients] == [("a", 2, 0.6), ("b", 4, 0.5), ("c", 8, 0.0)]
    with pytest.raises(ProfileError, match="'a'"):
        extended.extended(old)


def test_a_profile_that_is_extended_keeps_the_times_that_it_has_followed_so_far():
    """Those of some iterations only place the new ones among them: of two common ones one is 4 s later here, which is 2 s for all."""
    old = GradientProfile.from_samples("job", ["a", "b"], [4, 8], [[10.0, 0.0]] * 3)
    newer = GradientProfile.from_samples("job", ["a", "b", "c"], [4, 8, 2], [[14.0, 0.0, 20.0]] * 3)
    assert [(g.name, round(g.ready, 6)) for g in old.extended(newer).gradients] == [("a", 10.0), ("b", 0.0), ("c", 18.0)]


@pytest.mark.parametrize(
    "call",
    [
        lambda: detect_steps(5),
        lambda: detect_steps("123"),
        lambda: GradientProfile("a", 5, []),
        lambda: GradientProfile("a", [1], [[0]]),
        lambda: GradientProfile("a", [Gradient("b", 4)], [0]),
        lambda: GradientProfile("a", [Gradient("b", 4)], None),
        lambda: GradientProfile.from_json(None),
        lambda: GradientProfile.from_json(5),
        lambda: GradientProfile.load("a\0b"),
        lambda: GradientProfile.load(None),
        lambda: GradientProfile.from_samples("a", 5, [4], [[0.0]]),
        lambda: GradientProfile.from_samples("a", ["b"], [4], 7),
        lambda: GradientProfile.from_samples("a", ["b"], [4], [3.0]),
        lambda: GradientProfile("a", [Gradient("b", 4, 1.0, 1.0)], [[0]]).scaled(size=1e308),
        lambda: GradientProfile("a", [Gradient("b", 4)], [[0]]).save("a\0b"),
        lambda: GradientProfile("a", [Gradient("b", 4)], [[0]]).save(None),
        lambda: GradientProfile("a", [Gradient("b", 4)], [[0]]).updated(3),
    ],
)
def test_profiles_from_wrong_types(call):
    with pytest.raises(ProfileError):
        call()
