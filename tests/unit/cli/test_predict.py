"""The command ``prophet-mx predict``."""

import json
import re

import pytest

from prophet_mx.errors import ConfigError
from prophet_mx.simulation.compute_times import estimated_compute
from prophet_mx.simulation.predict import load_costs
from support.commands import cli
from support.profiles import RESNET18, recorded


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "job.json"
    recorded(RESNET18).save(str(path))
    return str(path)


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


@pytest.mark.parametrize(
    "text, part",
    [
        ('{"costs": {"rtt": 0.001}}', None),
        ('{"rtt": 0.001}', None),
        ('{"wrong": 1}', "rtt"),
        ("[]", "JSON object"),
        ("{", "JSON object"),
        ('{"rtt": -1}', "rtt=-1"),
        ('{"rtt": "fast"}', "rtt='fast'"),
    ],
)
def test_files_of_costs(tmp_path, text, part):
    path = tmp_path / "costs.json"
    path.write_text(text)
    if part is None:
        assert load_costs(str(path)) == {"rtt": 0.001}
        return
    with pytest.raises(ConfigError, match=re.escape(part)):
        load_costs(str(path))


@pytest.mark.parametrize(
    "options, part",
    [
        (["--bandwidth", "0"], "'0' is not allowed"),
        (["--bandwidth", "1Gbit", "--workers", "0"], "'0' is not allowed"),
        (["--bandwidth", "1Gbit", "--policy", "off"], "'off' is not allowed"),
        (["--bandwidth", "1Gbit", "--costs", "/none"], "cannot be read"),
        (["--bandwidth", "1Gbit", "--compute", "1us"], "is not allowed"),
    ],
)
def test_wrong_arguments_are_one_line(file, options, part):
    done = cli("predict", "--profile", file, "--no-range", *options)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and part in done.stderr, done.stderr
