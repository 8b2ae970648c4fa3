"""What is said of the jobs of a comparison: medians, speeds, what is left out, and what cannot be."""

import pytest

from benchmarks.comparison.cells import title
from benchmarks.comparison.command import compare
from benchmarks.comparison.results import add_output_options
from benchmarks.comparison.rows import JobRow, read, write_csv
from benchmarks.comparison.summaries import BelowBoundError, summarise
from benchmarks.comparison.tables import claims, compact, detail
from benchmarks.run import parser
from support.results import CELL, about, cell_of, job, jobs

OTHER = CELL.replace("resnet50_v1", "vgg16")
OURS = jobs("prophet", 160, 161, 162)
ROWS = [*OURS, *jobs("p3", 240, 245, 230), *jobs("pushpull", 320, 322, 330)]


def line_of(text, method):
    return next(line for line in text.splitlines() if line.startswith(f"| {method} |"))


def test_a_method_is_the_median_of_its_jobs_that_count_with_its_interval():
    rows = [*ROWS, job("prophet", 400, aside="60% of a core taken")]
    [cell] = summarise(rows, ["pushpull"])
    assert list(cell.methods) == ["pushpull", "prophet", "p3"] and cell.ours.time == (161, 160, 162) and cell.ours.tried == 4
    assert cell.ours.speed_against(cell.methods["p3"]) == pytest.approx((1.5, 230 / 162, 245 / 161))  # round by round
    line = line_of(detail(rows, about()), "p3")
    assert "| 240.0 (230.0 to 245.0) |" in line and "| 1.600 |" in line and "| 1.50 (1.42 to 1.52) |" in line and "| 3 of 3 |" in line
    assert "| 3 of 4 |" in line_of(detail(rows, about()), "prophet")


@pytest.mark.parametrize("table", [detail, compact, claims])
def test_a_time_under_the_bound_stops_the_report_with_the_reason(table):
    rows = [*ROWS, *jobs("credit", 147, 147, 148, goodput_share=0.91)]
    with pytest.raises(
        BelowBoundError, match=r"resnet50.*credit took 0\.980 of the bound.* 150 ms.*91\.0% of their rate.*measure the cell again"
    ):
        table(rows, about())
    assert "(1.00)" in compact([*ROWS, *jobs("credit", 150)], about())


def test_a_method_that_compresses_may_be_faster_than_the_bound_of_the_others():
    rows = [*jobs("ddp-bf16-2MB", 140, bound_ms=None), *ROWS]
    found = detail(rows, about())
    assert "bound 150 ms" in found and "| 140.0 | 140 to 140 |  |" in line_of(found, "ddp-bf16-2MB")
    assert line_of(compact(rows, about()), "ResNet-50, 150 ms, rho 1").startswith("| ResNet-50, 150 ms, rho 1 | 150 |")
    assert "| 140 |" in compact(rows, about())
    rank = claims(rows, about()).splitlines()[-1]
    assert "`prophet` was fastest in the one cell with" in rank and "`ddp-bf16-2MB` is not counted: it sends gradients in 16 bits" in rank


def test_a_run_with_a_time_under_the_bound_keeps_its_data_and_publishes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("benchmarks.comparison.results.RESULTS", tmp_path / "published")
    rows = [*ROWS, *jobs("credit", 147)]
    words = ["--cell", CELL, "--results", str(tmp_path), "--name", "mine", "--publish", "short", "--repeats", "1"]
    assert compare([cell_of(rows)], parser().parse_args(words), "run", about()) == 1
    assert "credit took 0.980 of the bound" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.csv", "mine.json"] and read(tmp_path / "mine.csv") == rows


def test_only_what_is_told_to_be_published_replaces_a_published_result(tmp_path, capsys, monkeypatch):
    published = tmp_path / "published"
    monkeypatch.setattr("benchmarks.comparison.results.RESULTS", published)
    words = ["--cell", CELL, "--results", str(tmp_path / "scratch")]
    assert compare([cell_of(ROWS)], parser().parse_args(words), "run", about()) == 0 and not published.exists()
    [folder] = {path.stem for path in (tmp_path / "scratch").iterdir()}
    assert folder.startswith("run-")
    assert compare([cell_of(ROWS)], parser().parse_args([*words, "--publish", "short"]), "run", about()) == 0
    assert sorted(path.name for path in (published / "short").iterdir()) == ["data.csv", "metadata.json", "table.md"]
    assert compare([cell_of([job("prophet", 200, wrong=3)])], parser().parse_args([*words, "--publish", "short"]), "run", about()) == 1
    assert read(published / "short" / "data.csv") == ROWS


def test_a_method_that_was_left_out_or_failed_is_shown():
    rows = [*ROWS, job("credit", None, aside="failed: a job did not end in time\n----- w0\nits log")]
    asked = about(methods=["pushpull", "p3", "credit", "fifo", "prophet"])
    assert "| credit | **failed: a job did not end in time** |" in detail(rows, asked)
    assert "| fifo | **not measured** |" in detail(rows, asked)
    [head, _, line, *_] = compact(rows, asked).splitlines()
    assert head == "| ms per iteration (time / bound) | bound | plain dist_sync | p3 | credit | fifo | prophet |"
    assert line == "| ResNet-50, 150 ms, rho 1 | 150 | 322 (2.15) | 240 (1.60) | **failed** | **not measured** | 161 (1.07) |"


def test_a_cell_that_was_left_out_is_shown():
    asked = about(cells=[CELL, OTHER])
    assert f"**{OTHER}**: not measured" in detail(ROWS, asked)
    assert line_of(compact(ROWS, asked), "VGG-16, 150 ms, rho 1").count("**not measured**") == 3


def test_wrong_values_stand_in_both_tables():
    rows = jobs("prophet", 160, wrong=7)
    assert "**7 wrong values**" in detail(rows, about()) and "**wrong values**" in compact(rows, about())


def test_what_models_were_scaled_to_stands_at_every_table():
    rows = [*ROWS, *jobs("prophet", 160, cell=OTHER, megabytes=20.0, model_megabytes=553.4)]
    sentence = "gradients are resized to suit the links: ResNet-50 from 102 to 9 MB, VGG-16 from 553 to 20 MB per iteration."
    assert sentence in detail(rows, about()) and sentence in compact(rows, about())
    assert "not scaled" in detail([job("ddp", 100, bound_ms=None, megabytes=None)], about())


def test_the_sentences_say_where_it_is_slower_and_where_it_cannot_be_told():
    faster = claims(ROWS, about())
    assert "`prophet` takes 1.07 of the bound in 1 cell" in faster and "- 1.50 times as fast as `p3` (1 cell)." in faster
    assert faster.endswith("- `prophet` was fastest in the one cell with others to compare.")
    same = claims([*ROWS, *jobs("credit", 159, 163, 161)], about())
    assert same.endswith("- Of 1 cell, `prophet` was as fast as the fastest, within measurement error, in 1.")
    slower = claims([*ROWS, *jobs("credit", 156, 157, 158)], about())
    assert "slower in 1: ResNet-50, 150 ms, rho 1 (0.98 (0.97 to 0.98) times as fast as credit)" in slower
    assert "fastest in the one cell" in claims([*ROWS, *jobs("prophet", 160, cell=OTHER)], about()), "alone in a cell is no victory"


def test_claims_use_labels_and_show_a_difference_that_two_digits_hide():
    method = "prophet:PROPHET_UNIT=128000"
    rows = [*jobs(method, 160.5, 160.6, 160.7), *jobs("priority", 160, 160, 160)]
    found = claims(rows, about(labels={method: "prophet"}))
    assert "- `prophet` takes 1.07" in found and method not in found
    assert "slower in 1: ResNet-50, 150 ms, rho 1 (0.996 (0.996 to 0.997) times as fast as priority)" in found, found


def test_what_was_tuned_has_a_column_of_its_own_whatever_its_settings():
    tuned, other = "credit:PROPHET_UNIT=256000", "credit:PROPHET_UNIT=64000"
    rows = [*ROWS, *jobs("credit", 300), *jobs(tuned, 200), *jobs("prophet", 160, cell=OTHER), *jobs(other, 210, cell=OTHER)]
    asked = about(best={CELL: [tuned], OTHER: [other]})
    text = compact(rows, asked)
    assert "credit, tuned |" in text.splitlines()[0] and "| 200 (1.33) |" in text and "| 210 (1.40) |" in text
    assert "no slices |" in compact(ROWS, about(labels={"p3": "no slices"})).splitlines()[0]


def test_jobs_survive_their_file(tmp_path):
    rows = [*ROWS, job("credit", None, aside="failed: so"), job("prophet", 1e3, message_us=210.5, unit_kb=96.0)]
    write_csv(tmp_path / "data.csv", JobRow._fields, rows)
    assert read(tmp_path / "data.csv") == rows


def test_cells_have_short_names():
    assert title("vgg16,workers=4,servers=2,rho=1,compute=1,slow=1.3,rate=0.5Gbit") == (
        "VGG-16, 1000 ms, rho 1, 4 workers, 2 servers, 500 Mbit/s, one worker 30% slower"
    )
    assert title("resnet18_v1,ranks=2,rho=0.5,compute=0.15,rate=1Gbit,ready=steps", "cpu") == (
        "ResNet-18, 150 ms, rho 0.5, gradients in steps, all on the processor"
    )


def test_a_question_is_a_plain_name(capsys):
    import argparse

    outputs = argparse.ArgumentParser()
    add_output_options(outputs)
    with pytest.raises(SystemExit):
        outputs.parse_args(["--publish", "../elsewhere"])
    assert "'../elsewhere' is not allowed" in capsys.readouterr().err
