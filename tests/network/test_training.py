"""Real training on the testbed: a short run of the command, with the example script as it is."""

import pytest

from benchmarks import training
from benchmarks.comparison.rows import read
from benchmarks.testbed import Goodput

pytestmark = pytest.mark.alone

pytest.importorskip("PIL")


def test_a_script_trains_and_what_it_logs_and_saves_becomes_a_row(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(training, "measure", lambda bed: Goodput(0.95 * bed.rate, 0.95 * bed.rate, 1e-3))  # has tests of its own
    monkeypatch.setattr(training, "PICTURES", 4)
    words = "--cell mobilenet0.25,rate=200Mbit --methods prophet --repeats 1 --tries 1 --warmup 1 --iterations 2 --batch-size 4"
    code = training.main([*words.split(), "--timeout", "60", "--results", str(tmp_path), "--name", "short"])
    out, err = capfd.readouterr()
    assert code == 0, out + err
    [row] = read(tmp_path / "short.csv")
    assert row.method == "prophet" and len(row.weights) == 64 and 0 <= row.accuracy <= 1
    assert row.images == 8 and row.iterations == 4  # of two workers
    assert 0.8 < row.megabytes < 1 and row.rho == pytest.approx(row.megabytes / 11.875 / (row.compute_ms / 1e3), rel=0.01)
    assert 0 < row.cpu_percent < 200 and 0 < row.server_cpu_percent < 200
    assert "| `prophet` |" in (tmp_path / "short.md").read_text() and "benchmarks.training" in (tmp_path / "short.md").read_text()
