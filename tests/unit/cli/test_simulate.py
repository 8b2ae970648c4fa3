"""The command ``prophet-mx simulate``."""

import csv

import pytest

from prophet_mx.errors import ConfigError
from prophet_mx.profiling.compute_times import with_compute
from prophet_mx.profiling.gradient_profile import Gradient, GradientProfile
from prophet_mx.simulation.cluster import MESSAGE_COSTS
from prophet_mx.simulation.simulator import POLICIES, Cluster, simulate
from support.commands import cli
from support.profiles import network_like

RECORDED = GradientProfile(
    "job", [Gradient(name, 400, ready=ready) for name, ready in (("a", 0.06), ("b", 0.02), ("c", 0.0))], [[2], [1], [0]]
)


def test_a_recorded_profile_gets_compute_times():
    profile = with_compute(RECORDED, 0.12)
    assert profile.compute_seconds == pytest.approx(0.12)
    # The recorded intervals, and 20 ms before the first step.
    assert profile.backward_ready_times() == pytest.approx((0.08, 0.04, 0.02))
    assert [gradient.forward for gradient in profile.gradients] == pytest.approx([0.02, 0.01, 0.01])
    assert with_compute(RECORDED, 0.07).backward_ready_times() == pytest.approx((0.06, 0.02, 0.0))
    with pytest.raises(ConfigError, match="--compute 50ms is not allowed; allowed: more than the 60ms from"):
        with_compute(RECORDED, 0.05)


@pytest.fixture
def profile_file(tmp_path):
    path = tmp_path / "profile.json"
    network_like().save(str(path))
    return path


def test_the_command_prints_and_writes_the_table(profile_file, tmp_path):
    target = tmp_path / "table.csv"
    done = cli("simulate", "--profile", profile_file, "--bandwidth", "944M,1.25GB/s", "--workers", "2,4", "--servers", 1, "--csv", target)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("tiny: 24 gradients in 6 steps, ") and len(lines) == 2 + 4 * len(POLICIES)
    assert max(map(len, lines[1:])) < 80  # or a usual terminal would break each line
    assert lines[1].split() == ["policy", "bandwidth", "workers", "servers", "ms", "bound", "ratio", "speedup"]
    rows = list(csv.DictReader(target.read_text().splitlines()))
    assert [row["policy"] for row in rows] == list(POLICIES) * 4
    expected = simulate(network_like(), Cluster(118e6, workers=2, servers=1, **MESSAGE_COSTS), "prophet")
    assert float(rows[3]["seconds"]) == expected.seconds
    assert lines[5].split() == [
        "prophet",
        "944",
        "Mbit/s",
        "2",
        "1",
        f"{1e3 * expected.seconds:.1f}",
        f"{1e3 * expected.bound:.1f}",
        f"{expected.ratio:.3f}",
        f"{float(rows[0]['seconds']) / expected.seconds:.2f}",
    ]


def test_the_command_s_options_reach_the_simulation(profile_file):
    done = cli(
        "simulate",
        "--profile",
        profile_file,
        "--bandwidth",
        "118MB",
        "--servers",
        1,
        "--policy",
        "priority",
        "--compute",
        "500ms",
        "--size",
        0.5,
        "--rtt",
        "200us",
        "--overhead",
        300,
        "--message-time",
        "20us",
        "--server-time",
        "30us",
        "--server-rate",
        "1GB",
        "--jitter",
        0.1,
        "--straggler",
        1.2,
        "--copy-rate",
        "2GB",
        "--copy-whole",
        "--seed",
        7,
        "--iterations",
        4,
    )
    profile = network_like().scaled(0.5, 0.5)
    cluster = Cluster(118e6, 2, 1, 2e-4, 300, 2e-5, 3e-5, 1e-9, 0.1, 1.2, 2e9, 0)
    seconds = {policy: simulate(profile, cluster, policy, seed=7, iterations=4).seconds for policy in ("plain", "priority")}
    line = done.stdout.splitlines()[2].split()
    assert len(done.stdout.splitlines()) == 3 and line[0] == "priority", done.stderr
    assert line[5] == f"{1e3 * seconds['priority']:.1f}"
    assert line[8] == f"{seconds['plain'] / seconds['priority']:.2f}"


def test_a_recorded_profile_of_few_steps_needs_a_compute_time(tmp_path):
    path = tmp_path / "recorded.json"
    RECORDED.save(str(path))
    done = cli("simulate", "--profile", path, "--bandwidth", "1Gbit")
    assert done.returncode == 2 and "has no compute times, and with 3 step(s) they cannot be estimated" in done.stderr
    done = cli("simulate", "--profile", path, "--bandwidth", "1Gbit", "--compute", "120ms", "--policy", "off")
    assert done.returncode == 0 and "compute 120 ms" in done.stdout, done.stderr


def test_help_has_an_example_and_the_exit_codes():
    done = cli("simulate", "--help")
    assert done.returncode == 0
    assert "prophet-mx simulate --model" in done.stdout and "exit codes:" in done.stdout
