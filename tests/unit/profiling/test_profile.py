"""Profiles: steps found in ready times, averages over iterations, and files that are right or rejected."""
import json
import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_mx.errors import ProfileError
from prophet_mx.profiling.gradient_profile import Gradient, GradientProfile, average_iterations, detect_steps

MILLISECONDS = st.integers(0, 10**6)
READY = st.lists(MILLISECONDS, min_size=1, max_size=40)
SECONDS = st.none() | st.floats(0, 1e9)


def profile_of(ready, sizes=None):
    names = [f"layer{index}" for index in range(len(ready))]
    return GradientProfile.from_samples("job", names, sizes or [4] * len(ready), [ready])


@st.composite
def profiles(draw):
    names = draw(st.lists(st.text(min_size=1), min_size=1, max_size=12, unique=True))
    ready = draw(st.lists(st.floats(0, 1e3), min_size=len(names), max_size=len(names)))
    gradients = [Gradient(name, draw(st.integers(1, 2**50)), draw(SECONDS), draw(SECONDS), time, draw(SECONDS))
                 for name, time in zip(names, ready)]
    return GradientProfile(draw(st.text(min_size=1)), gradients, detect_steps(ready))


# ---- steps

def test_steps_are_the_bursts_that_the_gaps_separate():
    assert detect_steps([441, 440, 202, 201, 200, 1, 0]) == ((5, 6), (2, 3, 4), (0, 1))


def test_a_gap_of_twice_the_mean_does_not_yet_start_a_step():
    assert detect_steps([0, 1, 2, 3, 9]) == ((0, 1, 2, 3), (4,))     # mean 2.25, gap 6
    assert detect_steps([0, 1, 2, 6]) == ((0, 1, 2, 3),)             # mean 2, gap 4


@pytest.mark.parametrize("times", [[5.0], [2.0, 2.0, 2.0, 2.0], [0.0, 7.0], [0.0, 1.0, 2.0, 3.0, 4.0]])
def test_without_uneven_gaps_there_is_one_step(times):
    assert detect_steps(times) == (tuple(range(len(times))),)


@given(READY)
def test_steps_partition_the_gradients_and_keep_their_order(times):
    steps = detect_steps(times)
    assert sorted(index for step in steps for index in step) == list(range(len(times)))
    for step, later in zip(steps, steps[1:]):
        assert max(times[index] for index in step) < min(times[index] for index in later)


@given(READY, st.integers(1, 1000), st.integers(-10**6, 10**6))
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


# ---- averages

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


@pytest.mark.parametrize("factors", [{"size": 0}, {"size": -1}, {"size": float("nan")}, {"compute": 0},
                                     {"compute": float("inf")}, {"compute": -1.0}])
def test_scaling_by_what_is_no_factor_is_rejected(factors):
    with pytest.raises(ProfileError):
        GradientProfile("zoo", [Gradient("a", 4, 1.0, 1.0)], [[0]]).scaled(**factors)


# ---- files

@given(profiles())
def test_a_profile_survives_its_json_text(profile):
    assert GradientProfile.from_json(profile.to_json()) == profile


@given(profiles(), st.data())
def test_a_truncated_text_is_rejected(profile, data):
    text = profile.to_json().rstrip()
    with pytest.raises(ProfileError):
        GradientProfile.from_json(text[:data.draw(st.integers(0, len(text) - 1))])


def document():
    gradients = [dict(name=name, bytes=400, forward=0.1, backward=None, ready=ready, spread=None)
                 for name, ready in (("a", 0.3), ("b", 0.0))]
    return {"format": "prophet_mx profile 1", "name": "job", "gradients": gradients, "steps": [[1], [0]]}


def changed(path, value):
    result = document()
    place = result
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return result


def test_the_documented_format_is_read():
    profile = GradientProfile.from_json(json.dumps(document()))
    assert profile == GradientProfile("job", (Gradient("a", 400, 0.1, None, 0.3), Gradient("b", 400, 0.1, None, 0.0)),
                                      ((1,), (0,)))


WRONG = {
    "another format": changed(["format"], "prophet_mx profile 2"),
    "no format": {"gradients": []},
    "a list": [1, 2],
    "a number": 7,
    "unknown key": changed(["colour"], "red"),
    "unknown gradient key": changed(["gradients", 0, "colour"], "red"),
    "missing gradient key": changed(["gradients", 0], {"name": "a", "bytes": 4}),
    "no name": changed(["name"], ""),
    "name not a text": changed(["name"], ["job"]),
    "no gradients": dict(document(), gradients=[], steps=[]),
    "gradients not a list": changed(["gradients"], {}),
    "gradient not an object": changed(["gradients", 0], 5),
    "same name twice": changed(["gradients", 1, "name"], "a"),
    "gradient without name": changed(["gradients", 1, "name"], ""),
    "no bytes": changed(["gradients", 0, "bytes"], 0),
    "negative bytes": changed(["gradients", 0, "bytes"], -4),
    "bytes not whole": changed(["gradients", 0, "bytes"], 4.5),
    "bytes a truth value": changed(["gradients", 0, "bytes"], True),
    "bytes null": changed(["gradients", 0, "bytes"], None),
    "bytes absurd": changed(["gradients", 0, "bytes"], 10**30),
    "NaN": changed(["gradients", 0, "ready"], float("nan")),
    "infinite": changed(["gradients", 0, "forward"], float("inf")),
    "negative time": changed(["gradients", 0, "ready"], -0.1),
    "negative spread": changed(["gradients", 0, "spread"], -0.1),
    "time a text": changed(["gradients", 0, "ready"], "0.3"),
    "time a truth value": changed(["gradients", 0, "ready"], True),
    "time of many digits": changed(["gradients", 0, "ready"], 10**400),
    "steps missing": {key: value for key, value in document().items() if key != "steps"},
    "steps flat": changed(["steps"], [1, 0]),
    "step empty": changed(["steps"], [[1], [], [0]]),
    "gradient in two steps": changed(["steps"], [[1, 0], [0]]),
    "gradient in no step": changed(["steps"], [[1]]),
    "step of an unknown gradient": changed(["steps"], [[1], [2]]),
    "negative index": changed(["steps"], [[1], [-2]]),
    "index not whole": changed(["steps"], [[1.0], [0]]),
    "index a truth value": changed(["steps"], [[True], [False]]),
    "index null": changed(["steps"], [[1], [None]]),
    "steps out of order": changed(["steps"], [[0], [1]]),
}


def test_a_profile_is_extended_by_the_times_of_common_gradients():
    old = GradientProfile.from_samples("job", ["b", "c"], [4, 8], [[0.5, 0.0]] * 3)
    newer = GradientProfile.from_samples("job", ["a", "b", "c"], [2, 4, 8], [[7.7, 7.6, None], [8.7, 8.6, None]])
    extended = old.extended(newer)
    assert [(g.name, g.bytes, round(g.ready, 6)) for g in extended.gradients] == [("a", 2, 0.6), ("b", 4, 0.5), ("c", 8, 0.0)]
    with pytest.raises(ProfileError, match="'a'"):
        extended.extended(old)


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_file_is_rejected_and_named(wrong, tmp_path):
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(wrong))
    with pytest.raises(ProfileError, match="wrong.json"):
        GradientProfile.load(str(path))


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00binary", b"PNG", b"[" * 100000, b'{"name": "a", "name": "b"}',
                                     b'{"format": "prophet_mx profile 1", "name": 1e999}'])
def test_a_foreign_file_is_rejected_and_named(content, tmp_path):
    path = tmp_path / "foreign.json"
    path.write_bytes(content)
    with pytest.raises(ProfileError, match="foreign.json"):
        GradientProfile.load(str(path))


def test_a_key_stated_twice_is_rejected():
    text = json.dumps(document()).replace('"bytes": 400', '"bytes": 400, "bytes": 500', 1)
    with pytest.raises(ProfileError, match="twice"):
        GradientProfile.from_json(text)


def test_a_missing_file_is_a_profile_error(tmp_path):
    with pytest.raises(ProfileError, match="nowhere.json"):
        GradientProfile.load(str(tmp_path / "nowhere.json"))


def test_save_replaces_the_file_at_once_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "job.json"
    profile_of([1.0, 0.0]).save(str(path))
    reader = os.open(path, os.O_RDONLY)
    try:
        profile_of([2.0, 1.0, 0.0]).save(str(path))
        assert GradientProfile.from_json(os.read(reader, 10**6).decode()) == profile_of([1.0, 0.0])
    finally:
        os.close(reader)
    assert GradientProfile.load(str(path)) == profile_of([2.0, 1.0, 0.0])
    assert os.listdir(tmp_path) == ["job.json"]


def test_save_keeps_the_permissions_of_a_file_and_follows_a_link(tmp_path):
    path, link = tmp_path / "job.json", tmp_path / "link.json"
    path.write_text("old")
    path.chmod(0o600)
    link.symlink_to(path)
    profile_of([1.0, 0.0]).save(str(link))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and link.is_symlink()
    assert GradientProfile.load(str(path)) == profile_of([1.0, 0.0])


def test_a_new_file_obeys_the_umask(tmp_path):
    old = os.umask(0o027)
    try:
        profile_of([1.0, 0.0]).save(str(tmp_path / "job.json"))
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "job.json").stat().st_mode) == 0o640


def test_a_private_file_is_private_while_it_is_replaced(tmp_path, monkeypatch):
    path = tmp_path / "job.json"
    path.write_text("old")
    path.chmod(0o600)
    seen = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: seen.append(stat.S_IMODE(os.fstat(number).st_mode)) or sync(number))
    profile_of([1.0, 0.0]).save(str(path))
    assert seen == [0o600]


def test_what_is_no_regular_file_is_not_replaced(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(str(path))
    with pytest.raises(ProfileError, match="not a regular file"):
        profile_of([1.0, 0.0]).save(str(path))
    assert stat.S_ISFIFO(path.stat().st_mode) and os.listdir(tmp_path) == ["pipe"]


def test_a_save_that_fails_is_a_profile_error_and_leaves_nothing(tmp_path):
    (tmp_path / "directory").mkdir()
    for path in (tmp_path / "directory", tmp_path / "nowhere" / "job.json"):
        with pytest.raises(ProfileError, match="cannot write"):
            profile_of([1.0, 0.0]).save(str(path))
    assert os.listdir(tmp_path) == ["directory"]
