"""Predictions of all-reduce: the model by itself, and beside what was measured."""

import csv
import statistics
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.comparison.results import Files
from benchmarks.comparison.rings import RingCell
from prophet_mx.errors import ConfigError
from prophet_mx.profiling.model_profiles import model_profile
from prophet_mx.simulation.collectives import DDP, SCHEDULED, by_operation, predict_ring
from prophet_mx.simulation.predict import WORST
from support.profiles import RESNET18, make_profile


def test_two_layers_by_hand():
    """Backward takes 40 ms, forward 20, a gradient 10 at 100 MB/s. DDP sends both in one bucket from 40 ms on, and begins forward at 60.
    Scheduled, the last layer's goes at 20, and forward waits for the first layer's until 50."""
    profile = make_profile([10**6, 10**6], [0.01, 0.01], [0.02, 0.02])
    found = predict_ring(profile, 1e8, 2, startup=0.0)
    assert found.seconds[DDP] == pytest.approx(0.08) and found.seconds[SCHEDULED] == pytest.approx(0.07)
    assert (found.compute, found.communication, found.rho) == (pytest.approx(0.06), pytest.approx(0.02), pytest.approx(1 / 3))
    slow = predict_ring(make_profile([10**5, 10**8], [0.01, 0.01], [0.02, 0.02]), 1e8, 4)  # three passes over a link instead of two
    assert slow.communication == pytest.approx(1.5 * 1.001) and slow.seconds[DDP] > slow.seconds[SCHEDULED] >= slow.bound
    with pytest.raises(ConfigError, match="ranks=1"):
        predict_ring(profile, 1e8, 1)


@settings(max_examples=20)
@given(st.floats(0.05, 20), st.integers(2, 64), st.floats(0, 0.01))
def test_nothing_beats_the_bound(rho, ranks, startup):
    rate = RESNET18.total_bytes / (rho * RESNET18.compute_seconds) * 2 * (ranks - 1) / ranks
    found = predict_ring(RESNET18, rate, ranks, startup)
    assert found.rho == pytest.approx(rho) and min(found.seconds.values()) >= found.bound * (1 - 1e-9)
    assert found.seconds[found.best_ddp] <= found.seconds[DDP]


def test_gradients_of_an_operation_are_ready_together():
    profile = by_operation(model_profile("vgg16"))
    assert len(profile.steps) == 16 and all(len(step) == 2 for step in profile.steps)


@pytest.mark.parametrize("model", ["bert_base", "resnet152_v1"])
def test_biases_between_large_weights_cost_no_collectives_of_their_own(model):
    found = predict_ring(model_profile(model).scaled(compute=0.25), rate=1.2e9, ranks=8)
    assert found.seconds[SCHEDULED] <= 1.02 * found.bound


def test_predictions_are_near_what_was_measured():
    """Jobs with emulated devices, in which all ranks are alike; a method's name there is that here."""
    methods = {"ddp": DDP, "ddp-1MB": "ddp, 1 MB buckets", "ddp-4MB": "ddp, 4 MB buckets", "scheduled": SCHEDULED}
    times, goodput = defaultdict(list), {}
    with open(Files.published("pytorch").data, encoding="utf-8") as file:
        for row in csv.DictReader(file):
            alike = row["kind"] == "device" and "slow" not in row["cell"] and "jitter" not in row["cell"]
            if alike and row["time_ms"] and row["method"] in methods:
                times[row["cell"], row["method"]].append(float(row["time_ms"]) / 1e3)
                goodput[row["cell"]] = float(row["goodput_gbit"]) * 1e9 / 8
    errors = []
    for (text, method), measured in times.items():
        cell = RingCell.parse(text, "device")
        found = predict_ring(cell.load(goodput[text]).profile, goodput[text], cell.ranks, in_steps=cell.steps)
        errors.append(abs(found.seconds[methods[method]] / statistics.median(measured) - 1))
    assert len(errors) >= 2 * len(methods) and statistics.median(errors) < 0.02 and max(errors) < WORST, errors
