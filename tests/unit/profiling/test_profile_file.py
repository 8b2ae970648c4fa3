"""Files of profiles, that are right or rejected."""

import json
import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_mx.errors import ProfileError
from prophet_mx.profiling.gradient_profile import Gradient, GradientProfile
from support.profiles import profile_of, profiles


@given(profiles())
def test_a_profile_survives_its_json_text(profile):
    assert GradientProfile.from_json(profile.to_json()) == profile


@given(profiles(), st.data())
def test_a_truncated_text_is_rejected(profile, data):
    text = profile.to_json().rstrip()
    with pytest.raises(ProfileError):
        GradientProfile.from_json(text[: data.draw(st.integers(0, len(text) - 1))])


def document():
    gradients = [
        dict(name=name, bytes=400, forward=0.1, backward=None, ready=ready, spread=None) for name, ready in (("a", 0.3), ("b", 0.0))
    ]
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
    assert profile == GradientProfile("job", (Gradient("a", 400, 0.1, None, 0.3), Gradient("b", 400, 0.1, None, 0.0)), ((1,), (0,)))


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


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_file_is_rejected_and_named(wrong, tmp_path):
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(wrong))
    with pytest.raises(ProfileError, match="wrong.json"):
        GradientProfile.load(str(path))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00binary",
        b"PNG",
        b"[" * 100000,
        b'{"name": "a", "name": "b"}',
        b'{"format": "prophet_mx profile 1", "name": 1e999}',
    ],
)
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
