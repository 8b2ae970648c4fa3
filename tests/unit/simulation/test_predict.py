"""prophet-mx predict: times that the simulator gives, and an honest word on when scheduling cannot help."""
import csv
import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import predictions
from benchmarks.validate_simulator import read
from jobs.test_cli import cli
from prophet_mx.errors import ConfigError, ProfileError
from prophet_mx.planning.bound import worker_rate
from prophet_mx.profiling.gradient_profile import Gradient, GradientProfile
from prophet_mx.simulation.compute_times import estimated_compute
from prophet_mx.simulation.predict import MARGIN, load_costs, predict, predicted_seconds, useful_rates
from prophet_mx.simulation.simulator import POLICIES, Cluster, simulate
from support.paths import ROOT

DATA = ROOT / "benchmarks" / "profiles_data"
RESNET18 = GradientProfile.load(str(DATA / "resnet18_v1.json")).scaled(compute=0.3)


def rate_for(rho, profile=RESNET18):
    """Link rate of two workers and one server at which communication takes ``rho`` times as long as computing."""
    return profile.total_bytes / (rho * profile.compute_seconds) / worker_rate(1.0, 2, 1)


def recorded(profile):
    """As a job keeps it: when gradients became ready, and no compute times."""
    return replace(profile, gradients=tuple(replace(g, forward=None, backward=None) for g in profile.gradients))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "job.json"
    recorded(RESNET18).save(str(path))
    return str(path)


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
EVEN = GradientProfile("even", [Gradient(f"g{i}", 10**5, forward=0.001, backward=0.002) for i in range(100)],
                       [range(i, i + 10) for i in range(90, -1, -10)])


@pytest.mark.parametrize("profile, rho, helps, words", [
    (RESNET18, 0.02, False, "too small"), (RESNET18, 1, True, "times as fast"),
    (RESNET18, 4, True, "Workers still wait for the network"),
    (EVEN, 1, True, "times as fast"), (EVEN, 100, False, "too large")])
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
    one = GradientProfile("one", [replace(RESNET18.gradients[0], forward=0.1, backward=0.2, ready=0.0)], [[0]])
    assert useful_rates(one) is None


def test_compute_time_is_estimated_from_recorded_steps():
    # Of 0.3 s backward takes two thirds; the zoo's profile has its steps where backward really makes them.
    assert estimated_compute(recorded(RESNET18)) == pytest.approx(0.3, rel=0.25)
    few = replace(recorded(RESNET18), steps=(tuple(range(20, 62)), tuple(range(20))))
    for profile in (few, GradientProfile("one", [replace(RESNET18.gradients[0], ready=0.0)], [[0]])):
        with pytest.raises(ProfileError, match="--compute"):
            estimated_compute(replace(profile, gradients=recorded(profile).gradients))


def test_the_command(file):
    done = cli("predict", "--profile", file, "--bandwidth", "1Gbit,100Gbit", "--policy", "prophet", "--compute", "300ms")
    assert done.returncode == 0, done.stderr
    assert "compute 300 ms, as given" in done.stdout
    times = [float(time) for time in re.findall(r"^(?:plain|prophet|lower bound) +([\d.]+)", done.stdout, re.MULTILINE)]
    assert len(times) == 6 and times[2] <= times[1] < times[0]
    assert done.stdout.count("Scheduling helps: with prophet") == 1 and done.stdout.count("Scheduling cannot help here") == 1
    assert re.search(r"prophet gains 4% or more at bandwidths from [\d.]+ [MG]bit/s.* to [\d.]+ Gbit/s; most, \d+%, at about", done.stdout)


def test_the_command_in_json_without_compute_time(file):
    done = cli("predict", "--profile", file, "--bandwidth", "1Gbit", "--policy", "plain,priority", "--no-range", "--json")
    found = json.loads(done.stdout)
    assert found["compute"].startswith("a guess from the recorded steps") and found["useful_bandwidths"] is None
    [only] = found["predictions"]
    assert only["bandwidth"] == 125e6 and set(only["seconds"]) == {"plain", "priority"}
    assert only["compute_seconds"] == pytest.approx(estimated_compute(recorded(RESNET18)))
    assert only["verdict"]["gain"] == pytest.approx(only["seconds"]["plain"] / only["seconds"][only["verdict"]["policy"]] - 1)


@pytest.mark.parametrize("text, part", [
    ('{"costs": {"rtt": 0.001}}', None), ('{"rtt": 0.001}', None), ('{"wrong": 1}', "rtt"), ("[]", "JSON object"),
    ("{", "JSON object"),
    ('{"rtt": -1}', "rtt=-1"), ('{"rtt": "fast"}', "rtt='fast'")])
def test_files_of_costs(tmp_path, text, part):
    path = tmp_path / "costs.json"
    path.write_text(text)
    if part is None:
        assert load_costs(str(path)) == {"rtt": 0.001}
        return
    with pytest.raises(ConfigError, match=re.escape(part)):
        load_costs(str(path))


@pytest.mark.parametrize("options, part", [
    (["--bandwidth", "0"], "'0' is not allowed"), (["--bandwidth", "1Gbit", "--workers", "0"], "'0' is not allowed"),
    (["--bandwidth", "1Gbit", "--policy", "off"], "'off' is not allowed"),
    (["--bandwidth", "1Gbit", "--costs", "/none"], "cannot be read"),
    (["--bandwidth", "1Gbit", "--compute", "1us"], "is not allowed")])
def test_wrong_arguments_are_one_line(file, options, part):
    done = cli("predict", "--profile", file, "--no-range", *options)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and part in done.stderr, done.stderr


CELL = "resnet18_v1,workers=2,servers=1,rho=1,compute=0.2,rate=1Gbit"


def test_predictions_are_compared_with_measured_cells(tmp_path, capsys):
    path = tmp_path / "runs.csv"

    def measured(times):
        with open(path, "w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(["cell", "method", "time_ms", "goodput_gbit"])
            writer.writerows([CELL, method, time, 0.95] for method, time in times.items())

    measured({"pushpull": 1, "prophet": 1})
    true = {}
    for row in read([path]):
        load = row.cell.load(row.goodput)
        policy = "plain" if row.method == "pushpull" else row.method
        true[row.method] = 1e3 * predicted_seconds(load.profile, row.goodput, 2, 1, policy)
    measured({"pushpull": true["pushpull"] / 1.1, "prophet": true["prophet"] / 1.02, "p3": 5})
    assert predictions.main([str(path)]) == 0
    out = capsys.readouterr().out
    assert [line.split()[-1] for line in out.splitlines() if line.startswith(CELL)] == ["+10.0%", "+2.0%"]
    assert "predicted: 2 rows of 1 cells, median error 6.0%, largest 10.0%" in out
    measured({"pushpull": true["pushpull"] / 1.2})
    assert predictions.main([str(path)]) == 1
    assert predictions.main([str(tmp_path / "none.csv")]) == 2


def test_every_policy_of_the_simulator_can_be_predicted():
    assert set(predict(RESNET18.scaled(size=0.05), 1e8).seconds) == set(POLICIES)


def test_published_measurements_are_predicted_with_a_median_error_under_10_percent(capsys):
    assert predictions.main([str(DATA.parent / "results" / "quick.csv")]) == 0
    assert re.search(r"^predicted: \d+ rows of \d+ cells, median error \d\.\d%", capsys.readouterr().out, re.MULTILINE)
