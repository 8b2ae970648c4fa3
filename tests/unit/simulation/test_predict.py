"""prophet-mx predict: times that the simulator gives, and an honest word on when scheduling cannot help."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prophet_mx.errors import ConfigError, ProfileError
from prophet_mx.planning.bound import worker_rate
from prophet_mx.profiling.gradient_profile import Gradient, GradientProfile
from prophet_mx.simulation.compute_times import estimated_compute
from prophet_mx.simulation.predict import MARGIN, predict, predicted_seconds, useful_rates
from prophet_mx.simulation.simulator import POLICIES, Cluster, simulate
from prophet_mx.sizes import MIN_UNIT
from support.profiles import DATA, RESNET18, recorded


def rate_for(rho, profile=RESNET18):
    """Link rate of two workers and one server at which communication takes ``rho`` times as long as computing."""
    return profile.total_bytes / (rho * profile.compute_seconds) / worker_rate(1.0, 2, 1)


def test_a_prediction_is_the_simulation():
    for policy in ("plain", "prophet"):
        result = simulate(RESNET18, Cluster(1e8, 4, 2, message_seconds=1e-4), policy, iterations=4, warmup=4)
        assert predicted_seconds(RESNET18, 1e8, 4, 2, policy, costs={"message_seconds": 1e-4}) == result.seconds
    assert predicted_seconds(RESNET18, 1e8, policy="plain", costs={"rtt": 0.01}) > predicted_seconds(RESNET18, 1e8, policy="plain")
    with pytest.raises(ConfigError, match="policy='best' is not allowed"):
        predicted_seconds(RESNET18, 1e8, policy="best")


@settings(max_examples=25)
@given(st.floats(0.05, 20), st.sampled_from([(1, 1), (2, 1), (4, 2)]))
def test_no_policy_beats_the_bound_and_the_verdict_follows_the_times(rho, cluster):
    small = GradientProfile.load(str(DATA / "vgg16.json")).scaled(compute=0.5, size=0.02)
    found = predict(small, rate_for(rho, small), *cluster, policies=["prophet", "fifo"])
    assert set(found.seconds) == {"plain", "prophet", "fifo"}
    assert min(found.seconds.values()) >= found.bound * (1 - 1e-9)
    assert found.bound >= max(found.compute, found.communication) * (1 - 1e-9)
    verdict = found.verdict
    assert verdict.gain == pytest.approx(found.seconds["plain"] / found.seconds[verdict.policy] - 1)
    assert verdict.helps == (verdict.gain >= MARGIN)
    assert verdict.sentence.startswith("Scheduling helps:" if verdict.helps else "Scheduling cannot help here")


# Many small gradients: in any order the link is busy, and the answers come while it is.
EVEN = GradientProfile(
    "even", [Gradient(f"g{i}", 10**5, forward=0.001, backward=0.002) for i in range(100)], [range(i, i + 10) for i in range(90, -1, -10)]
)


@pytest.mark.parametrize(
    "profile, rho, helps, words",
    [
        (RESNET18, 0.02, False, "too small"),
        (RESNET18, 1, True, "times as fast"),
        (RESNET18, 4, True, "Workers still wait for the network"),
        (EVEN, 1, True, "times as fast"),
        (EVEN, 100, False, "too large"),
    ],
)
def test_the_sentence_says_why(profile, rho, helps, words):
    verdict = predict(profile, rate_for(rho, profile), policies=["prophet"]).verdict
    assert (verdict.helps, words in verdict.sentence) == (helps, True), verdict.sentence


def test_messages_that_cost_too_much_are_another_reason():
    tiny = RESNET18.scaled(size=0.001)
    verdict = predict(tiny, rate_for(0.5, tiny), policies=["prophet"], costs={"server_message_seconds": 0.02}).verdict
    assert not verdict.helps and "what its messages cost" in verdict.sentence


def test_useful_rates_are_those_where_the_gain_is():
    found = useful_rates(RESNET18)
    assert found.low < found.best <= found.high and not found.open_above
    for rate, helps in ((found.best, True), (found.high, True), (1.5 * found.high, False)):
        assert predict(RESNET18, rate, policies=["prophet"]).verdict.helps == helps


def test_one_gradient_gives_nothing_to_choose():
    one = GradientProfile("one", [replace(RESNET18.gradients[0], bytes=MIN_UNIT, forward=0.1, backward=0.2, ready=0.0)], [[0]])
    assert useful_rates(one) is None


def test_compute_time_is_estimated_from_recorded_steps():
    # Of 0.3 s backward takes two thirds; the zoo's profile has its steps where backward really makes them.
    assert estimated_compute(recorded(RESNET18)) == pytest.approx(0.3, rel=0.25)
    few = replace(recorded(RESNET18), steps=(tuple(range(20, 62)), tuple(range(20))))
    for profile in (few, GradientProfile("one", [replace(RESNET18.gradients[0], ready=0.0)], [[0]])):
        with pytest.raises(ProfileError, match="--compute"):
            estimated_compute(replace(profile, gradients=recorded(profile).gradients))


def test_every_policy_of_the_simulator_can_be_predicted():
    assert set(predict(RESNET18.scaled(size=0.05), 1e8).seconds) == set(POLICIES)
