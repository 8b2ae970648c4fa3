"""The numbers of the pictures: measured times, speed-ups, and what a worker does in an iteration."""

import json

import pytest

from benchmarks.pictures.spans import iteration
from benchmarks.pictures.speedups import BOUND, Bars, bars, measured_seconds, measured_words, message_costs, speed_up
from prophet_mx.profiling.gradient_profile import Gradient, GradientProfile
from prophet_mx.simulation.cluster import default_units
from prophet_mx.simulation.simulator import Cluster, simulate
from support.results import CELL, job, jobs, published

THREE = GradientProfile(
    "three", [Gradient("a", 10**5, 0.01, 0.02), Gradient("b", 10**6, 0.01, 0.02), Gradient("c", 10**6, 0.01, 0.02)], ((2,), (1,), (0,))
)


def test_the_bars_are_the_published_times_of_each_model_and_the_least_possible(tmp_path):
    assert bars(tmp_path) == []
    other = CELL.replace("resnet50_v1", "vgg16")
    rows = [
        *jobs("pushpull", 240, 250, 260),
        *jobs("prophet", 160),
        *jobs("p3-push+pull", 200, cell=other),
        *jobs("prophet", 170, cell=other),
    ]
    published(tmp_path, "models", rows, cells=[CELL, other])
    first, second = bars(tmp_path / "benchmarks" / "results")
    assert first == Bars("ResNet-50", {"plain dist_sync": 250.0, "prophet": 160.0, BOUND: 150.0})
    assert second == Bars("VGG-16", {"P3": 200.0, "prophet": 170.0, BOUND: 150.0})


def test_measured_seconds_are_those_of_a_like_script_and_need_all_methods(tmp_path):
    cell = "resnet50_v1,batch=128,device=v100,script=gluon,workers=2,servers=1,rate=4Gbit"
    rows = [*jobs("pushpull", 600, cell=cell), *jobs("prophet", 500, cell=cell), job("prophet", 9, cell=cell.replace("50", "18"))]
    rows = [row._replace(bound_ms=None) for row in rows]
    published(tmp_path, "devices", rows, cells=[cell])
    results = tmp_path / "benchmarks" / "results"
    assert measured_seconds(("pushpull", "prophet"), results) == [0.6, 0.5]
    assert measured_seconds(("pushpull", "credit"), results) is None and measured_words(("credit",), results) == ""
    assert "600 and 500 ms" in measured_words(("pushpull", "prophet"), results)


def test_simulated_speed_ups_vanish_on_fast_links():
    assert speed_up("mobilenetv2_1.0", 1, {}) > 1.2
    assert speed_up("mobilenetv2_1.0", 100, {}) == pytest.approx(1.0, abs=0.02)


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
