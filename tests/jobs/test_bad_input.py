"""Wrong arguments of every public function: an error of prophet_mx before anything is sent, and the job goes on as if nothing had been."""
import copy
import json
import pickle
import re

import pytest

import prophet_mx
from prophet_mx import Config, ConfigError, ProfileError, ProphetError
from prophet_mx.planning.partition import cut, unit_bytes
from prophet_mx.profiling.gradient_profile import Gradient, GradientProfile, detect_steps
from support.cluster import run_cluster
from support.paths import SCRIPTS

JOB = SCRIPTS / "bad_input.py"


def results(kind, wrong, file):
    """Of each worker: how many calls were refused, and what the training gave."""
    job = run_cluster(JOB, 2, 1, env={"PROPHET_BANDWIDTH": "1Gbit"}, args=[kind, wrong, file], timeout=90)
    return [(int(re.search(r"refused (\d+)", worker.output).group(1)), re.search(r"result (.*)", worker.output).group(1))
            for worker in job.workers]


@pytest.mark.cluster
@pytest.mark.parametrize("kind", ["text", "number"])
def test_a_job_in_which_every_call_is_also_made_wrongly_trains_the_same(kind, tmp_path):
    wrong, right = results(kind, "wrong", tmp_path / "wrong"), results(kind, "right", tmp_path / "right")
    assert [count for count, _ in right] == [0, 0] and all(count > 300 for count, _ in wrong)
    assert [result for _, result in wrong] == [result for _, result in right]
    # And each wrong call raised what plain MXNet raises for it, where it raises.
    run_cluster(JOB, 1, 1, args=[kind, "plain", tmp_path / "plain"], timeout=90)
    plain = json.loads((tmp_path / "plain").read_text())
    assert sum(bool(kinds) for _, kinds in plain) > 150
    for rank in range(2):
        for ours in json.loads((tmp_path / f"wrong{rank}").read_text()):
            assert len(ours) == len(plain)
            assert [(what, kinds, mine) for (what, kinds), mine in zip(plain, ours) if not set(kinds) <= set(mine)] == []


def test_a_config_made_directly_is_checked_too():
    assert Config(unit="256KiB", bandwidth="1Gbit") == Config(unit=262144, bandwidth=1.25e8)
    for wrong in ({"policy": "best"}, {"unit": -1}, {"bandwidth": float("nan")}, {"profile": b"\0"}, {"warmup": 10**5000}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            Config(**wrong)


@pytest.mark.parametrize("call", [
    lambda: detect_steps(5), lambda: detect_steps("123"), lambda: GradientProfile("a", 5, []), lambda: GradientProfile("a", [1], [[0]]),
    lambda: GradientProfile("a", [Gradient("b", 4)], [0]), lambda: GradientProfile("a", [Gradient("b", 4)], None),
    lambda: GradientProfile.from_json(None), lambda: GradientProfile.from_json(5), lambda: GradientProfile.load("a\0b"),
    lambda: GradientProfile.load(None), lambda: GradientProfile.from_samples("a", 5, [4], [[0.0]]),
    lambda: GradientProfile.from_samples("a", ["b"], [4], 7), lambda: GradientProfile.from_samples("a", ["b"], [4], [3.0]),
    lambda: GradientProfile("a", [Gradient("b", 4, 1.0, 1.0)], [[0]]).scaled(size=1e308),
    lambda: GradientProfile("a", [Gradient("b", 4)], [[0]]).save("a\0b"),
    lambda: GradientProfile("a", [Gradient("b", 4)], [[0]]).save(None),
    lambda: GradientProfile("a", [Gradient("b", 4)], [[0]]).updated(3)])
def test_profiles_from_wrong_types(call):
    with pytest.raises(ProfileError):
        call()


@pytest.mark.parametrize("call", [
    lambda: cut(-1, 4, 16), lambda: cut(10, 4, None), lambda: cut(10.0, 4, 16), lambda: cut(10, 4, float("nan")), lambda: cut(10, 4, -1),
    lambda: unit_bytes("fastest", 1e6, 10, None), lambda: unit_bytes("prophet", float("nan"), 10, None),
    lambda: unit_bytes("prophet", -1.0, 10, None), lambda: unit_bytes("prophet", 1e6, "10", None), lambda: unit_bytes("fifo", 1e6, 10, 0)])
def test_layouts_of_wrong_sizes(call):
    with pytest.raises(ConfigError, match="allowed: "):
        call()


def test_the_smallest_units_of_a_huge_gradient_are_a_million():
    assert len(cut(2**40, 4, 4)) == 2**20


def test_errors_that_are_also_mxnet_s_can_be_copied_and_pickled():
    from prophet_mx.mxnet import errors
    kinds = [kind for kind in vars(errors).values() if getattr(kind, "__module__", "") == errors.__name__]
    assert len(kinds) == 5
    for kind in kinds:
        error = kind("key 'a' is initialised already")
        for made in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
            assert type(made) is kind and isinstance(made, prophet_mx.KVStoreError) and str(made) == str(error)


def test_every_error_is_in_the_hierarchy():
    for name in prophet_mx.__all__:
        if name.endswith("Error"):
            assert issubclass(getattr(prophet_mx, name), ProphetError)
