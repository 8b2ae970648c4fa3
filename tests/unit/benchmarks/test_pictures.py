"""The numbers of the pictures: speed-ups, the useful range, and what a worker does in an iteration."""

import json

import pytest

from benchmarks.comparison.cells import Cell
from benchmarks.pictures.spans import iteration
from benchmarks.pictures.speedups import (
    BOUND,
    GOODPUT_SHARE,
    Point,
    measured,
    measured_seconds,
    message_costs,
    rate_of_rho,
    simulated,
    useful_range,
)
from prophet_mx.profiling.gradient_profile import Gradient, GradientProfile
from prophet_mx.simulation.cluster import default_units
from prophet_mx.simulation.simulator import Cluster, simulate

JOB = Cell.parse("resnet50_v1,compute=0.5,scale=0.3")
THREE = GradientProfile(
    "three", [Gradient("a", 10**5, 0.01, 0.02), Gradient("b", 10**6, 0.01, 0.02), Gradient("c", 10**6, 0.01, 0.02)], ((2,), (1,), (0,))
)


@pytest.fixture
def results(tmp_path):
    """A folder of published results: the jobs of two questions."""

    def publish(question, *rows):
        lines = [f'"{JOB},rate={rate}",{method},{ms},0.9' for rate, method, ms in rows]
        (tmp_path / question).mkdir()
        (tmp_path / question / "data.csv").write_text("\n".join(["cell,method,time_ms,goodput_gbit", *lines]) + "\n")

    publish("bandwidth", ("2Gbit", "pushpull", 600), ("2Gbit", "prophet", 500), ("1Gbit", "prophet", 400), ("1Gbit", "pushpull", 800))
    publish("short", ("500Mbit", "prophet", 900))
    return tmp_path


def test_measured_points_are_ratios_within_a_run_in_the_order_of_rates(results):
    assert measured(JOB, results) == {"prophet": [Point(125e6, 2.0), Point(250e6, 1.2)]}
    assert measured(Cell.parse("resnet50_v1,compute=0.5,scale=0.2"), results) == {}


def test_measured_seconds_need_all_methods_in_one_run(results):
    assert measured_seconds(JOB, ("pushpull", "prophet"), results) == [0.8, 0.4]
    assert measured_seconds(Cell.parse(f"{JOB},rate=500Mbit"), ("pushpull", "prophet"), results) is None


def test_simulated_speed_ups_stay_below_the_bounds_and_vanish_on_fast_links():
    points = simulated(JOB, [125e6, 12.5e9], ["prophet"], {})
    slow, fast = points["prophet"]
    assert slow.rate == 125e6 and 1.2 < slow.speedup <= points[BOUND][0].speedup
    assert fast.speedup == pytest.approx(1.0, abs=0.02)


def test_the_range_ends_where_a_line_between_two_points_crosses_the_least_speed_up():
    points = [Point(1.0, 1.0), Point(2.0, 1.2), Point(4.0, 1.2), Point(8.0, 1.0)]
    assert useful_range(points, 1.1) == pytest.approx((1.5, 6.0))
    assert useful_range(points[1:], 1.1) == pytest.approx((2.0, 6.0))
    assert useful_range(points, 1.3) is None


@pytest.mark.parametrize("rho", [0.5, 1.0, 2.0])
def test_at_the_rate_of_a_rho_the_job_has_it(rho):
    assert JOB.load(rate_of_rho(JOB, rho) * GOODPUT_SHARE).rho == pytest.approx(rho)


def test_without_published_costs_messages_cost_nothing_and_the_picture_says_so(tmp_path):
    costs = message_costs(tmp_path / "none.json")
    assert not costs.values and "cost nothing" in costs.words
    (tmp_path / "metadata.json").write_text(json.dumps({"costs": {"rtt": 0.001}}))
    costs = message_costs(tmp_path / "metadata.json")
    assert costs.values == {"rtt": 0.001} and "fitted" in costs.words
    (tmp_path / "metadata.json").write_text(json.dumps({"costs": {"rtt": 0.0}}))
    assert "cost nothing, which fits measured jobs best" in message_costs(tmp_path / "metadata.json").words


@pytest.mark.parametrize("policy", ["plain", "prophet"])
def test_an_iteration_is_computing_and_stalls_and_a_link_carries_one_thing_at_a_time(policy):
    cluster = Cluster(bandwidth=6e7, workers=2, servers=1)
    one = iteration(THREE, simulate(THREE, cluster, policy, default_units(THREE, cluster, policy)))
    computing = [*one.backward, *one.forward]
    assert sum(span.end - span.begin for span in computing) + one.stalled == pytest.approx(one.seconds)
    assert [span.gradient for span in computing] == [2, 1, 0, 0, 1, 2]
    for spans in (one.sends, one.receives):
        assert all(before.end <= after.begin + 1e-12 for before, after in zip(spans, spans[1:]))
        assert {span.gradient for span in spans} == {0, 1, 2}
    carried = sum(span.end - span.begin for span in one.sends)
    assert carried == pytest.approx(THREE.total_bytes / 3e7, rel=0.1)
    first = max(span.end for span in one.receives if span.gradient == 0)
    assert one.forward[0].begin >= first - 1e-9


def test_plain_stalls_until_everything_was_sent_and_prophet_does_not():
    cluster = Cluster(bandwidth=6e7, workers=2, servers=1)
    plain, prophet = (
        iteration(THREE, simulate(THREE, cluster, policy, default_units(THREE, cluster, policy))) for policy in ("plain", "prophet")
    )
    assert plain.forward[0].begin > max(span.end for span in plain.sends)
    assert prophet.forward[0].begin < max(span.end for span in prophet.sends)
