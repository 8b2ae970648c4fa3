"""prophet-mx predict: times that the simulator gives, and an honest word on when scheduling cannot help."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prophet_mx.errors import ConfigError, ProfileError
from prophet_mx.planning.bound import worker_rate
from prophet_mx.profiling.compute_times import estimated_compute
from prophet_mx.profiling.gradient_profile import Gradient, GradientProfile
from prophet_mx.simulation.predict import MARGIN, predict, predicted_seconds, useful_rates
from prophet_mx.simulation.simulator import POLICIES, Cluster, simulate
from prophet_mx.simulation.verdict import facts, verdict
from prophet_mx.sizes import MIN_UNIT
from support.profiles import DATA, RESNET18, recorded

ANY_RATE = Cluster(1e9, workers=2, servers=1)


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
    said = verdict(found)
    assert said.gain == pytest.approx(found.seconds["plain"] / found.seconds[said.policy] - 1)
    assert said.helps == (said.gain >= MARGIN)
    assert said.sentence.startswith("Scheduling helps:" if said.helps else "Scheduling cannot help here, because")


# Many small gradients: in any order the link is busy, and the answers come while it is.
EVEN = GradientProfile(
    "even", [Gradient(f"g{i}", 10**5, forward=0.001, backward=0.002) for i in range(100)], [range(i, i + 10) for i in range(90, -1, -10)]
)


@pytest.mark.parametrize(
    "profile, rho, helps, words",
    [
        (RESNET18, 0.02, False, "the network is fast enough: rho is 0.02,"),
        (RESNET18, 1, True, "times as fast"),
        (RESNET18, 4, True, "Workers still wait for the network"),
        (EVEN, 1, True, "times as fast"),
        (EVEN, 100, False, "too slow for any order of sending: rho is 100,"),
    ],
)
def test_the_sentence_says_why(profile, rho, helps, words):
    said = verdict(predict(profile, rate_for(rho, profile), policies=["prophet"]))
    assert (said.helps, words in said.sentence) == (helps, True), said.sentence


def test_the_facts_name_rho_stall_and_gain():
    found = predict(RESNET18, rate_for(1), policies=["prophet"])
    rho, stall, gain, *_ = facts(found)
    plain, own = found.seconds["plain"], found.seconds["prophet"]
    assert rho.startswith("rho    1: an iteration sends for 300 ms and computes for 300 ms")
    assert f"({1 - 0.3 / plain:.0%}) of an iteration with plain dist_sync" in stall and f"({1 - 0.3 / own:.0%}) with prophet" in stall
    assert gain.startswith(f"gain   {plain / own:.2f} times") and f"{plain / found.bound:.2f} times is the most" in gain


def test_what_16_bits_would_give_is_said_where_that_is_more():
    """The links carry half of what they do with 32, and a network that is fast enough gains nothing."""
    slow, fast = (predict(RESNET18, rate_for(rho), policies=["prophet"]) for rho in (3, 0.1))
    assert slow.halved is not None and slow.halved.bound == pytest.approx(slow.bound / 2, rel=0.05)
    times = slow.seconds["plain"] / slow.halved.seconds
    assert facts(slow)[-1].startswith(f"fp16   {times:.2f} times as fast with compress='fp16'")
    assert not any("fp16" in line for line in facts(fast))


def test_a_straggler_s_own_compute_is_no_stall():
    slow = predict(RESNET18, rate_for(0.02), policies=["prophet"], costs={"straggler": 1.5})
    assert slow.stall("prophet") < 0.02 * slow.seconds["prophet"] and "the network is fast enough" in verdict(slow).sentence


def test_without_a_policy_that_schedules_nothing_is_said_of_scheduling():
    alone = predict(RESNET18, rate_for(1), policies=[])
    assert verdict(alone).sentence.startswith("No scheduling policy was requested") and not verdict(alone).helps
    assert facts(alone)[2].startswith(f"gain   {alone.seconds['plain'] / alone.bound:.2f} times is the most that any order of sending")


def test_messages_that_cost_too_much_are_another_reason():
    said = verdict(predict(RESNET18, rate_for(0.5), policies=["prophet"], costs={"rtt": 0.5}))
    assert not said.helps and "messages cost too much" in said.sentence


def test_a_policy_that_does_not_help_does_not_speak_for_the_default_one():
    tiny = RESNET18.scaled(size=0.001)
    rate, costs = rate_for(0.5, tiny), {"server_message_seconds": 0.02}
    said = verdict(predict(tiny, rate, policies=["priority"], costs=costs))
    assert not said.helps and "add --policy prophet" in said.sentence
    assert verdict(predict(tiny, rate, policies=["prophet"], costs=costs)).helps  # small gradients share messages


def test_useful_rates_are_those_where_the_gain_is():
    found = useful_rates(RESNET18, ANY_RATE)
    assert found.low < found.best <= found.high and not found.open_above
    for rate, helps in ((found.best, True), (found.high, True), (1.5 * found.high, False)):
        assert verdict(predict(RESNET18, rate, policies=["prophet"])).helps == helps


def test_one_gradient_gives_nothing_to_choose():
    one = GradientProfile("one", [replace(RESNET18.gradients[0], bytes=MIN_UNIT, forward=0.1, backward=0.2, ready=0.0)], [[0]])
    assert useful_rates(one, ANY_RATE) is None


def test_compute_time_is_estimated_from_recorded_steps():
    # Of 0.3 s backward takes two thirds; the zoo's profile has its steps where backward really makes them.
    assert estimated_compute(recorded(RESNET18)) == pytest.approx(0.3, rel=0.25)
    few = replace(recorded(RESNET18), steps=(tuple(range(20, 62)), tuple(range(20))))
    for profile in (few, GradientProfile("one", [replace(RESNET18.gradients[0], ready=0.0)], [[0]])):
        with pytest.raises(ProfileError, match="--compute"):
            estimated_compute(replace(profile, gradients=recorded(profile).gradients))


def test_every_policy_of_the_simulator_can_be_predicted():
    assert set(predict(RESNET18.scaled(size=0.05), 1e8).seconds) == set(POLICIES)
