"""What is made of results: the simulator's error, and where the processors' time goes."""

import csv
import json

import pytest

from benchmarks import processor, validate_simulator
from benchmarks.comparison.results import Files
from benchmarks.validate_simulator import predict, read
from prophet_mx.simulation.cluster import MESSAGE_COSTS
from prophet_mx.simulation.predict import MARGIN, WORST

CELL = "resnet18_v1,workers=2,servers=1,rho=1,compute=0.2,rate=1Gbit"
OTHER = "mobilenetv2_1.0,workers=4,servers=2,rho=1,compute=0.2,rate=0.5Gbit"


def result(path, times, message_us=""):
    """A file as benchmarks.run writes it, with the columns that are read: (cell, method) -> ms of each job."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["cell", "method", "round", "time_ms", "goodput_gbit", "message_us"])
        for (cell, method), jobs in times.items():
            for number, time in enumerate(jobs):
                writer.writerow([cell, method, number + 1, time, 0.95 if cell == CELL else 0.47, message_us])
    return path


def test_the_simulators_error_is_reported_row_by_row_for_both_kinds_of_costs(tmp_path, capsys):
    costs = {"message_seconds": 1e-4, "server_message_seconds": 5e-5}  # what a message of 100 us means in cells of twice as many workers
    (tmp_path / "costs.json").write_text(json.dumps({"costs": costs, "cells": [CELL]}))
    rows = {(CELL, "pushpull"): (1,), (CELL, "p3"): (1,), (OTHER, "pushpull"): (1,), (OTHER, "prophet"): (1,)}
    true = {
        (str(row.cell), row.method): 1e3 * predict(row.cell, row.method, row.goodput, costs)
        for row in read([result(tmp_path / "a.csv", rows)])
    }
    assert set(true) == set(rows) - {(CELL, "p3")}  # what has no model is left out

    def checked(factors):
        measured = {key: [factor * time for factor in factors.get(key, (1,))] for key, time in true.items()}
        arguments = [str(result(tmp_path / "a.csv", measured, message_us=100)), "--costs", str(tmp_path / "costs.json")]
        code = validate_simulator.main([*arguments, "--results", str(tmp_path), "--name", "simulator"])
        with open(tmp_path / "simulator.csv") as file:
            return code, {(row["costs"], row["cell"], row["method"]): row for row in csv.DictReader(file)}

    code, found = checked({(OTHER, "prophet"): (1 / 1.05, 1 / 1.05, 9)})  # the median job counts
    for costs_name in ("fitted", "as measured"):
        assert float(found[costs_name, OTHER, "prophet"]["error"]) == pytest.approx(0.05, abs=1e-3)
        assert float(found[costs_name, OTHER, "pushpull"]["error"]) == pytest.approx(0, abs=1e-3)
    assert code == 0 and found["fitted", CELL, "pushpull"]["fitted"] == "True"
    assert found["fitted", OTHER, "prophet"]["fitted"] == found["as measured", CELL, "pushpull"]["fitted"] == "False"
    assert "predicted: 2 rows of 1 cells, median error 2.5%, largest 5.0%" in capsys.readouterr().out
    assert checked(dict.fromkeys(true, (1 / 1.2,)))[0] == 1


def test_what_a_message_costs_is_found_in_one_cell_and_predicts_the_others(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(validate_simulator, "MESSAGES", (0.0, 4e-4, 8e-4, 1.6e-3))
    costs = {"message_seconds": 8e-4, "server_message_seconds": 4e-4}
    rows = {(cell, method): (1,) for cell in (CELL, OTHER) for method in ("pushpull", "prophet")}
    file = result(tmp_path / "a.csv", rows)
    true = {(str(row.cell), row.method): [1e3 * predict(row.cell, row.method, row.goodput, costs)] for row in read([result(file, rows)])}
    arguments = [str(result(file, true)), "--results", str(tmp_path), "--name", "simulator", "--fit"]
    assert validate_simulator.main([*arguments, CELL]) == 0
    assert json.loads((tmp_path / "simulator.json").read_text())["costs"] == costs
    assert "predicted: 2 rows of 1 cells, median error 0.0%, largest 0.0%" in capsys.readouterr().out
    assert validate_simulator.main([*arguments, f"{CELL},slow=2"]) == 1
    assert f"allowed: {OTHER}, {CELL}" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        validate_simulator.main([*arguments, "resnet18_v1,rho=none"])


def test_a_slower_worker_is_simulated_as_slow_and_operations_that_vary_are_not_simulated(tmp_path):
    slow, varied = f"{CELL},slow=1.3", f"{CELL},jitter=0.3"
    rows = read([result(tmp_path / "a.csv", {(cell, "prophet"): (250,) for cell in (CELL, slow, varied)})])
    assert [row.cell.slow for row in rows] == [None, 1.3]
    plain, slower = (predict(row.cell, row.method, row.goodput, {}) for row in rows)
    assert slower > 0.99 * 1.3 * 0.2 and slower > 1.1 * plain


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
        processor.Profile("cell", "p3", 100.0, 1.25, {("worker", "messages"): 20.0, ("worker", "copies"): 30.0}),
        processor.Profile("cell", "fifo", 90.0, 1.1, {("worker", "copies"): 10.0, ("server", "Python"): 1.0}),
    ]
    lines = processor.markdown(profiles).splitlines()
    assert lines[0].endswith("| p3 | fifo |") and lines[2] == "| **workers** | all | **50** | **10** |"
    assert lines[3:5] == ["| | copies | 30 | 10 |", "| | messages | 20 | 0 |"]
    assert "| **servers** | all | **0** | **1** |" in lines and "| time / bound | | 1.250 | 1.100 |" in lines


def test_what_predict_says_of_its_errors_and_of_messages_is_what_was_measured():
    published = Files.published("simulator")
    with open(published.data, encoding="utf-8") as file:
        errors = [abs(float(row["error"])) for row in csv.DictReader(file) if row["costs"] == "fitted"]
    assert max(errors) <= WORST and sum(error < MARGIN for error in errors) > len(errors) / 2
    fitted = json.loads(published.about.read_text(encoding="utf-8"))["costs"]
    assert set(fitted) == set(MESSAGE_COSTS) and all(1 / 2 < MESSAGE_COSTS[name] / fitted[name] < 2 for name in fitted)
