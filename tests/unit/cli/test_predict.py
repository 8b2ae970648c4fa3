"""The command ``prophet-mx predict``."""

import csv
import json
import re

import pytest

from prophet_mx.errors import ConfigError
from prophet_mx.profiling.compute_times import estimated_compute
from prophet_mx.simulation.predict import load_costs
from support.commands import cli
from support.paths import ROOT
from support.profiles import RESNET18, recorded

SHORT = ["--no-range", "--iterations", "2"]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "job.json"
    recorded(RESNET18).save(str(path))
    return str(path)


def test_words_come_first_then_the_table_then_the_useful_bandwidths(file):
    done = cli(
        "predict", "--profile", file, "--bandwidth", "1Gbit,100Gbit", "--policy", "off,prophet", "--compute", "300ms", "--servers", 1
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].endswith("; compute 300 ms, as given")
    slow, fast, table, useful = done.stdout.split("\n\n")[1:]
    assert slow.startswith("2 workers, 1 server, links of 1 Gbit/s\n  Scheduling helps: with prophet")
    assert fast.startswith("2 workers, 1 server, links of 100 Gbit/s\n  Scheduling cannot help here, because the network is fast enough")
    for words in (slow, fast):
        assert re.search(r"\n  rho    [\d.]+: .*\n  stall  .*\n  gain   ", words), words
    assert [line.split()[0] for line in table.splitlines()] == ["policy", "plain", "prophet", "plain", "prophet"]
    assert re.match(
        r"For this job with 2 workers, 1 server, the policy prophet gains 4% or more at bandwidths from [\d.]+ [MG]bit/s", useful
    )


def test_the_example_of_a_model_that_ships_prints_what_the_documentation_shows():
    text = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
    [call] = re.findall(r"^prophet-mx (predict --model .*)$", text, re.MULTILINE)
    [shown] = re.findall(r"^```text\n(vgg16: .*?)^```$", text, re.MULTILINE | re.DOTALL)
    done = cli(*call.split(), "--no-range")
    assert done.returncode == 0 and done.stdout.startswith(shown + "\npolicy "), done.stdout
    assert "Scheduling helps: with prophet" in shown


def test_predict_and_simulate_give_the_same_rows_in_every_form(file, tmp_path):
    """The options are the same, and so are their defaults."""
    options = ["--profile", file, "--bandwidth", "1Gbit,10Gbit", "--workers", "2,3", "--rtt", "1ms", "--compute", "250ms", "--size", "0.1"]
    options += ["--policy", "plain,priority", "--iterations", "2"]
    tables, rows = {}, {}
    for command in (["predict", "--no-range"], ["simulate"]):
        target = tmp_path / f"{command[0]}.csv"
        done = cli(*command, *options, "--csv", target)
        assert done.returncode == 0, done.stderr
        tables[command[0]] = done.stdout[done.stdout.index("policy   ") :].strip(), target.read_text()
        rows[command[0]] = json.loads(cli(*command, *options, "--json").stdout)["rows"]
    assert tables["predict"] == tables["simulate"] and rows["predict"] == rows["simulate"]
    written = list(csv.DictReader(tables["predict"][1].splitlines()))
    assert len(written) == 8 and [{key: str(value) for key, value in row.items()} for row in rows["predict"]] == written


def test_json_without_a_compute_time(file):
    done = cli("predict", "--profile", file, "--bandwidth", "1Gbit", "--policy", "plain,priority", "--servers", "1", "--json", *SHORT)
    found = json.loads(done.stdout)
    assert found["compute"].startswith("a guess from the recorded steps") and found["useful_bandwidths"] == []
    assert [(row["policy"], row["bandwidth"]) for row in found["rows"]] == [("plain", 125e6), ("priority", 125e6)]
    [only] = found["predictions"]
    assert only["compute_seconds"] == pytest.approx(estimated_compute(recorded(RESNET18)))
    assert only["stall_seconds"]["plain"] == pytest.approx(found["rows"][0]["seconds"] - only["compute_seconds"])
    assert only["verdict"]["helps"] and only["verdict"]["gain"] == pytest.approx(found["rows"][1]["speedup"] - 1)


def test_messages_have_a_cost_unless_options_say_otherwise(file):
    """Without one, policies that send many small messages look better than they are."""
    call = ["predict", "--model", "resnet50", "--compute", "100ms", "--bandwidth", "9.4Gbit", "--workers", "8", "--no-range"]
    usual, free = cli(*call).stdout, cli(*call, "--message-time", "0", "--server-time", "0").stdout
    assert "Scheduling helps: with prophet an" in usual
    [sentence] = re.findall(r"Scheduling helps: with priority an .*", free)
    gains = {line.split()[0]: line.split()[-1] for line in free.splitlines() if line.endswith(tuple("0123456789"))}
    assert sentence.endswith(f"{gains['priority']} times as fast, and {gains['prophet']} times with prophet, the default.")
    assert f"\n  gain   {gains['priority']} times as fast with priority, and {gains['prophet']} times with prophet, the default; " in free


def test_policies_that_do_not_help_do_not_speak_for_the_default_one():
    call = ["predict", "--model", "vgg16", "--compute", "250ms", "--bandwidth", "10Gbit", "--workers", 8, *SHORT]
    alone = cli(*call, "--policy", "fifo").stdout
    assert "\n  fifo does not help here: an iteration takes 8" in alone
    assert "add --policy prophet to see what the default policy gains.\n" in alone and "cannot help" not in alone
    fast = cli(*call, "--bandwidth", "1Tbit", "--policy", "fifo").stdout
    assert "Scheduling cannot help here, because the network is fast enough" in fast


def test_names_of_policies_are_taken_in_any_case_as_in_settings(file):
    done = cli("predict", "--profile", file, "--bandwidth", "10Gbit", "--policy", "Prophet,OFF", *SHORT)
    assert [line.split()[0] for line in done.stdout.splitlines()[-2:]] == ["prophet", "plain"], done.stderr


def test_a_gain_at_a_small_rho_is_explained():
    found = cli(
        "predict", "--model", "mobilenet", "--compute", "250ms", "--bandwidth", "7Gbit", "--workers", 64, "--policy", "prophet", *SHORT
    )
    assert re.search(r"\n  rho    0\.06\d", found.stdout) and re.search(r"with prophet .*, 1\.\d\d times as fast", found.stdout)
    assert re.search(r"\n  server the busiest carries \d\.\d times its share with plain dist_sync, which keeps each small", found.stdout)
    even = cli("predict", "--model", "vgg16", "--compute", "250ms", "--bandwidth", "7Gbit", "--policy", "prophet", *SHORT)
    assert "server the busiest" not in even.stdout


def test_all_reduce_is_compared_with_ddp_and_its_best_buckets(tmp_path):
    call = ["predict", "--model", "resnet50", "--compute", "150ms", "--size", "0.1753", "--bandwidth", "956Mbit", "--all-reduce"]
    done = cli(*call, "--csv", tmp_path / "table.csv")
    assert done.returncode == 0, done.stderr
    first, words, table = done.stdout.split("\n\n")
    assert first.startswith("resnet50_v1: 193 gradients") and words.startswith(
        "2 ranks, all-reduce, links of 956 Mbit/s\n  Scheduling helps"
    )
    assert re.search(r"\n  rho    1: .*\n  bound  150\.?\d* ms: .*\n  tuned  .* bucket_cap_mb=\d", words), words
    found = json.loads(cli(*call, "--json").stdout)
    rows, [only] = found["rows"], found["predictions"]
    assert only["rho"] == pytest.approx(1, abs=0.01) and only["bound_seconds"] == rows[0]["bound"] and only["ranks"] == 2
    assert only["verdict"]["helps"] and only["verdict"]["gain"] == pytest.approx(rows[-1]["speedup"] - 1)
    assert only["verdict"]["sentence"] in words
    assert [row["method"] for row in rows] == [line.split("  ")[0] for line in table.splitlines()[1:]]
    assert [{key: str(value) for key, value in row.items()} for row in rows] == list(csv.DictReader((tmp_path / "table.csv").open()))
    fast = cli(*call[:-3], "--bandwidth", "100Gbit", "--startup", "20us", "--workers", 4, "--all-reduce").stdout
    assert "  Scheduling gains next to nothing: with ScheduledOptimizer" in fast and "tuned" not in fast


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


def test_an_option_overrides_the_file_of_costs(file, tmp_path):
    (tmp_path / "costs.json").write_text('{"rtt": 0.05}')
    options = ["predict", "--profile", file, "--compute", "300ms", "--bandwidth", "1Gbit", "--policy", "plain", "--json", *SHORT]
    costs = ["--costs", tmp_path / "costs.json"]
    seconds = [json.loads(cli(*options, *more).stdout)["rows"][0]["seconds"] for more in ([], costs, [*costs, "--rtt", "0"])]
    assert seconds[0] == seconds[2] < seconds[1]


def test_small_ports_take_longer_and_are_named():
    options = ["predict", "--model", "resnet18", "--size", "0.02", "--compute", "50ms", "--bandwidth", "200Mbit", "--servers", "1"]
    options += ["--workers", "4", "--policy", "plain,prophet", "--iterations", "2"]
    seconds = {}
    for ports in ("32KB", "10MB"):
        done = cli(*options, "--ports", ports, "--json")
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert answer["useful_bandwidths"] == []
        seconds[ports] = [row["seconds"] for row in answer["rows"]]
    assert all(small > large for small, large in zip(seconds["32KB"], seconds["10MB"]))
    done = cli(*options, "--ports", "32KB", "--hosts", "drop")
    assert "4 workers, 1 server, links of 200 Mbit/s, ports of 32 KB, hosts drop too\n" in done.stdout
    assert "the policy prophet gains" not in done.stdout
