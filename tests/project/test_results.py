"""What is made of results: the tables, whether repeats agree, and the simulator's error."""

import csv
import json
import re

import pytest

from benchmarks import predictions, processor, repeatability, validate_simulator
from benchmarks.report import compact
from benchmarks.validate_simulator import predict, read
from support.paths import ROOT

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


@pytest.mark.parametrize("undisturbed, seconds", [("190.0", 0.19), ("", 0.2)])
def test_the_simulator_is_compared_with_undisturbed_iterations_if_there_were_any(tmp_path, undisturbed, seconds):
    (tmp_path / "a.csv").write_text(f'cell,method,time_ms,goodput_gbit,undisturbed_ms\n"{CELL}",prophet,200.0,0.95,{undisturbed}\n')
    assert [row.seconds for row in read([tmp_path / "a.csv"])] == [seconds]


def test_the_simulators_error_is_reported_row_by_row(tmp_path, capsys):
    costs = {"message_seconds": 1e-4}
    (tmp_path / "costs.json").write_text(json.dumps({"costs": costs, "cells": [CELL]}))
    rows = {(CELL, "pushpull"): 1, (CELL, "p3"): 1, (OTHER, "pushpull"): 1, (OTHER, "prophet"): 1}
    true = {
        (str(row.cell), row.method): 1e3 * predict(row.cell, row.method, row.goodput, costs)
        for row in read([result(tmp_path / "a.csv", rows)])
    }
    assert set(true) == set(rows) - {(CELL, "p3")}  # what has no model is left out
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


PERF = """
   70     71.000100:
\tffffffff81e2c080 __sys_recvfrom ([kernel.kallsyms])
\tffffffff821ea011 do_syscall_64 ([kernel.kallsyms])
\t          10a974 __libc_recv (/usr/lib/libc.so.6)

   70     71.000200:
\tffffffff81e2c080 __tcp_transmit_skb ([kernel.kallsyms])
\tffffffff81e2c081 handle_softirqs ([kernel.kallsyms])
\tffffffff821ea011 __sys_sendto ([kernel.kallsyms])

   80     71.200000:
\t         1346ee2 ps::Van::Send(ps::Message const&) (/usr/lib/python3/mxnet/libmxnet.so)
\t               1 [unknown] ([unknown])

   80     71.300000:
\t          109a1 __memmove_avx_unaligned_erms (/usr/lib/libc.so.6)

   90     71.400000:
\t          209a1 Scheduler_ordered (/usr/lib/python3/prophet_mx/_core/scheduler.so)

    0     71.500000:
\tffffffff821ef72b default_idle ([kernel.kallsyms])

   70     72.500000:
\tffffffff81e2c080 __sys_recvfrom ([kernel.kallsyms])
"""


def test_samples_of_the_processors_are_counted_by_role_and_kind():
    found = list(processor.samples(PERF))
    assert [sample.pid for sample in found] == [70, 70, 80, 80, 90, 0, 70] and found[0].time == 71.0001
    assert found[0].stack[2] == "__libc_recv (libc.so.6)"
    counted = processor.count(found, {70: "worker", 80: "server"}, 71.0, 72.0)
    assert counted == {
        ("worker", "network: receive"): 1,
        ("worker", "network: packets"): 1,
        ("server", "messages"): 1,
        ("server", "copies"): 1,
        ("others", "prophet_mx"): 1,
    }


def test_the_table_of_processor_time_has_a_column_per_method():
    profiles = [
        processor.Profile("p3", 100.0, 1.25, 0.1, {("worker", "messages"): 20.0, ("worker", "copies"): 30.0}),
        processor.Profile("fifo", 90.0, 1.1, 0.0, {("worker", "copies"): 10.0, ("server", "Python"): 1.0}),
    ]
    lines = processor.markdown(profiles).splitlines()
    assert lines[0].endswith("| p3 | fifo |") and lines[2] == "| **workers** | all | **50** | **10** |"
    assert lines[3:5] == ["| | copies | 30 | 10 |", "| | messages | 20 | 0 |"]
    assert "| **servers** | all | **0** | **1** |" in lines and "| time / bound | | 1.250 | 1.100 |" in lines


def test_published_measurements_are_predicted_with_a_median_error_under_10_percent(capsys):
    assert predictions.main([str(ROOT / "benchmarks" / "results" / "quick.csv")]) == 0
    assert re.search(r"^predicted: \d+ rows of \d+ cells, median error \d\.\d%", capsys.readouterr().out, re.MULTILINE)
