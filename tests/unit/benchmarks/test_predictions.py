"""Measured cells beside their predictions."""

import csv

from benchmarks import predictions
from benchmarks.validate_simulator import read
from prophet_mx.simulation.predict import predicted_seconds

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
