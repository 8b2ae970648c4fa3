"""What is made of results: the tables, whether repeats agree, and the simulator's error."""
import csv
import json

import pytest

from benchmarks import repeatability, validate_simulator
from benchmarks.report import compact
from benchmarks.validate_simulator import predict, read

CELL = "resnet18_v1,workers=2,servers=1,rho=1,compute=0.2,rate=1Gbit"
OTHER = "mobilenetv2_1.0,workers=4,servers=2,rho=1,compute=0.2,rate=0.5Gbit"


def result(path, times):
    """A file as benchmarks.run writes it, with the columns that are read: (cell, method) -> ms."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["cell", "method", "time_ms", "bound_ms", "time_over_bound", "goodput_gbit", "machine"])
        for (cell, method), time in times.items():
            writer.writerow([cell, method, time, 200, time / 200, 0.95 if cell == CELL else 0.47, "a machine"])
    return path


def test_the_compact_table_has_a_column_per_cell(tmp_path):
    lines = compact(result(tmp_path / "a.csv", {(CELL, "p3"): 300, (OTHER, "p3"): 400, (CELL, "fifo"): 250})).splitlines()
    assert CELL in lines[0] and lines[0].index(CELL) < lines[0].index(OTHER)
    assert lines[2:5] == ["| lower bound | 200 | 200 |", "| p3 | 300 (1.50) | 400 (2.00) |", "| fifo | 250 (1.25) |  |"]


@pytest.mark.parametrize("again, code, marked", [(104, 0, 0), (106, 1, 1), (94, 1, 1)])
def test_repeats_that_differ_by_more_than_5_percent_fail(tmp_path, capsys, again, code, marked):
    first = result(tmp_path / "a.csv", {(CELL, "p3"): 100, (CELL, "fifo"): 100})
    second = result(tmp_path / "b.csv", {(CELL, "p3"): again, (OTHER, "fifo"): 1})
    assert repeatability.main([str(first), str(second)]) == code
    text = (tmp_path / "repeatability.md").read_text()
    assert text.count("over 5%") == marked and "fifo" not in text and f"| 100 | {again} |" in text


def test_repeats_without_a_common_row_are_refused(tmp_path):
    first, second = result(tmp_path / "a.csv", {(CELL, "p3"): 1}), result(tmp_path / "b.csv", {(OTHER, "p3"): 1})
    with pytest.raises(SystemExit):
        repeatability.main([str(first), str(second)])


def test_the_simulators_error_is_reported_row_by_row(tmp_path, capsys):
    costs = {"message_seconds": 1e-4}
    (tmp_path / "costs.json").write_text(json.dumps({"costs": costs, "cells": [CELL]}))
    rows = {(CELL, "pushpull"): 1, (CELL, "p3"): 1, (OTHER, "pushpull"): 1, (OTHER, "prophet"): 1}
    true = {(str(row.cell), row.method): 1e3 * predict(row.cell, row.method, row.goodput, costs)
            for row in read([result(tmp_path / "a.csv", rows)])}
    assert set(true) == set(rows) - {(CELL, "p3")}             # what has no model is left out
    measured = {**true, (OTHER, "prophet"): true[OTHER, "prophet"] / 1.05}
    arguments = [str(result(tmp_path / "a.csv", measured)), "--costs", str(tmp_path / "costs.json"), "--results", str(tmp_path)]
    assert validate_simulator.main(arguments) == 0
    with open(tmp_path / "simulator.csv") as file:
        found = {(row["cell"], row["method"]): row for row in csv.DictReader(file)}
    assert float(found[OTHER, "prophet"]["error"]) == pytest.approx(0.05, abs=1e-3)
    assert float(found[OTHER, "pushpull"]["error"]) == pytest.approx(0, abs=1e-3)
    assert found[CELL, "pushpull"]["fitted"] == "True" and found[OTHER, "prophet"]["fitted"] == "False"
    assert "predicted: 2 rows of 1 cells, median error 2.5%, largest 5.0%" in capsys.readouterr().out
    measured = {key: time / 1.2 for key, time in true.items()}
    result(tmp_path / "a.csv", measured)
    assert validate_simulator.main(arguments) == 1
