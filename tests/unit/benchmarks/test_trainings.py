"""Training by a script: what is read from its log, that weights must not differ, and what its table says."""

import argparse
import time

import pytest

from benchmarks import training
from benchmarks.comparison.cells import Cell
from benchmarks.comparison.command import CellOfJobs, compare
from benchmarks.comparison.methods import parse
from benchmarks.comparison.rows import JobRow, read, write_csv
from benchmarks.comparison.tables import claims, detail
from benchmarks.comparison.trainings import Log, Weights, WeightsDifferError
from benchmarks.testbed import TestbedError
from support.results import about, cell_of, job

CELL = "resnet18_v1,workers=2,servers=1,rate=1.5Gbit"
OPTIONS = argparse.Namespace(warmup=1, iterations=2, batch_size=8)
LINE = "2026-11-23 07:42:0{},{}00 Node[1] Epoch[0] Batch [{}-{}]\tSpeed: 46.23 samples/sec\taccuracy={}\n"
ACCURACIES = (0.125, 0.25, 0.5, 0.75)


def log(policy="prophet", batches=4):
    """Of batches that take 0.5 s each."""
    told = [LINE.format(1 + number // 2, number % 2 * 5, number, number + 1, ACCURACIES[number]) for number in range(batches)]
    end = "gradient traffic was not scheduled" if policy == "off" else f"policy {policy} scheduled 4.2 MB in 12 units over 3 iterations"
    return (
        "2026-11-23 07:42:00,100 Node[1] start with arguments {'policy': None}\n"
        + "".join(told)
        + f"2026-11-23 07:42:09,000 Node[1] {end}\n"
    )


class Clock:
    """Two cores' time all the time."""

    def at(self, moment):
        return 2 * moment


def trained(method, time_ms, turn=1, **more):
    values = {"bound_ms": None, "images": 64, "accuracy": 0.8125, "weights": "aa", "compute_ms": 500.0, "megabytes": 44.77}
    return job(method, time_ms, turn, CELL, **{**values, "model_megabytes": None, "calls_ms": None, "memory_mb": None, **more})


ROWS = [
    trained(name, t, n + 1) for name, ts in {"pushpull": (1000, 990, 800), "prophet": (800, 825, 640)}.items() for n, t in enumerate(ts)
]


def line_of(text, name):
    return next(line for line in text.splitlines() if line.startswith(f"| {name} |"))


def test_a_log_says_when_batches_ended_and_what_they_recognised():
    found = Log.read(log())
    assert found.policy == "prophet" and found.accuracies == list(ACCURACIES)
    assert found.ends == pytest.approx([time.mktime((2026, 11, 23, 7, 42, 1, 0, 0, -1)) + half / 2 for half in range(4)])
    assert Log.read(log("off")).policy == "off"


def test_a_workers_result_has_its_times_and_the_accuracy_of_what_is_measured():
    clocks = {"worker": Clock(), "server": Clock()}
    result = training.worker_result(log(), parse("prophet"), clocks, 2, OPTIONS)
    starts = result["starts"]
    assert [b - a for a, b in zip(starts, starts[1:])] == pytest.approx([0.5] * 3) and result["images"] == 8
    assert result["accuracy"] == pytest.approx((0.5 + 0.75) / 2)  # what ends with or before the warm-up does not count
    assert result["wall_seconds"] == pytest.approx(1.5) and result["cpu_seconds"] == pytest.approx(1.5)
    assert result["server_cpu_seconds"] == pytest.approx(3)
    assert "server_cpu_seconds" not in training.worker_result(log("off"), None, {"worker": Clock()}, 2, OPTIONS)


@pytest.mark.parametrize(
    "text, method, told",
    [
        (log(batches=3), "prophet", "told of 3 batches and policy prophet, not of 4 and prophet"),
        (log("off"), "prophet", "policy off, not of 4 and prophet"),
        (log("prophet"), "p3", "policy prophet, not of 4 and off"),
    ],
)
def test_a_log_of_another_job_than_was_asked_for_is_an_error_that_shows_it(text, method, told):
    with pytest.raises(TestbedError, match=told) as raised:
        training.worker_result(text, parse(method), {"worker": Clock()}, 2, OPTIONS)
    assert "start with arguments" in str(raised.value)


def test_weights_of_a_cell_that_differ_are_an_error_which_names_both_methods():
    weights = Weights(CELL, {})
    weights.check("p3", "aa" * 32)
    weights.check("prophet", "aa" * 32)
    with pytest.raises(
        WeightsDifferError, match=r"resnet18_v1.*a job of credit ended with other weights than one of p3 \(bbbb.*, not aaaa"
    ):
        weights.check("credit", "bb" * 32)


def test_weights_that_differ_end_a_run_at_once_and_nothing_of_it_is_published(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("benchmarks.comparison.results.RESULTS", tmp_path / "published")

    def fail(kept):
        raise WeightsDifferError("other weights")

    words = ["--cell", CELL, "--results", str(tmp_path), "--name", "mine", "--publish", "training"]
    assert compare([cell_of(ROWS, CELL), CellOfJobs("other", "", fail)], training.parser().parse_args(words), "training", about()) == 1
    assert "error: other weights" in capsys.readouterr().err
    assert not (tmp_path / "published").exists() and read(tmp_path / "mine.csv") == ROWS


def test_the_table_has_images_per_second_beside_plain_and_whether_weights_are_its():
    text = detail([*ROWS, trained("credit", None, aside="failed: it hung")], about(methods=["pushpull", "p3", "credit", "prophet"]))
    assert "nothing is emulated but the network" in text
    assert "64 samples and 44.77 MB per iteration, 500 ms of compute, which is 128.0 samples/s, rho 1," in text
    assert line_of(text, "plain `dist_sync`").startswith("| plain `dist_sync` | 64.6 (64.0 to 80.0) |  | 81% | the same bits |")
    assert line_of(text, "`prophet`").startswith("| `prophet` | 80.0 (77.6 to 100.0) | 1.25 (1.20 to 1.25) | 81% | the same bits |")
    assert "**failed: it hung**" in line_of(text, "`credit`") and "**not measured**" in line_of(text, "P3")


@pytest.mark.parametrize("weights, said", [("bb", "**others**"), ("", "**others**")])
def test_a_table_of_data_with_other_weights_says_so(weights, said):
    rows = [*ROWS[:-1], ROWS[-1]._replace(weights=weights)]
    assert f"| {said} |" in line_of(detail(rows, about()), "`prophet`")
    assert "| not compared |" in line_of(detail(ROWS[3:], about()), "`prophet`")


def test_the_sentences_are_those_of_a_comparison_without_bounds():
    text = claims(ROWS, about(labels={"pushpull": "plain `dist_sync`"}))
    assert "- 1.25 times as fast as plain `dist_sync` (1 cell)." in text and "the bound" not in text and "fastest in the one cell" in text


def test_jobs_of_training_survive_their_file_and_have_a_speed(tmp_path):
    write_csv(tmp_path / "data.csv", JobRow._fields, ROWS)
    assert read(tmp_path / "data.csv") == ROWS and ROWS[0].speed == 64
    for other in (job("prophet", 160), trained("credit", None, aside="failed: so")):
        with pytest.raises(ValueError, match=f"{other.method}: trained on no images"):
            assert other.speed


@pytest.mark.parametrize("setting", ["rho=1", "compute=0.15", "scale=1", "slow=1.3", "jitter=0.3"])
def test_a_cell_has_nothing_that_only_an_emulated_model_has(setting, capsys):
    assert training.main(["--cell", f"resnet18_v1,{setting}"]) == 1
    assert f"'resnet18_v1,{setting}': a network that is trained takes workers, servers and rate" in capsys.readouterr().err


def test_more_workers_than_end_with_the_same_bits_are_refused(capsys):
    assert training.main(["--cell", "resnet18_v1,workers=3"]) == 1
    assert "3 workers are not allowed; allowed: 1 or 2" in capsys.readouterr().err


def test_methods_that_the_script_has_no_calls_for_are_refused(capsys):
    with pytest.raises(SystemExit):
        training.main(["--cell", CELL, "--methods", "prophet,push+pull"])
    assert "'push+pull' is not allowed: the script trains by pushpull" in capsys.readouterr().err


def test_workers_train_as_many_images_each_with_a_store_and_without():
    cell = Cell.parse(CELL)
    commands = {name: training.script(cell, method, "x.rec", OPTIONS) for name, method in (("alone", None), ("p3", parse("p3")))}
    images = {name: command[command.index("--num-examples") + 1] for name, command in commands.items()}
    assert images == {"alone": str(8 * 5), "p3": str(2 * 8 * 5)}
    assert commands["p3"][-2:] == ["--policy", "off"] and "--policy" not in training.script(cell, parse("prophet"), "x.rec", OPTIONS)
