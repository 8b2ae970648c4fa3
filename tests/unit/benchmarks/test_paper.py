"""The paper's set-up at other rates: what is measured and simulated stands beside each other, and what is said of it."""

import pytest

from benchmarks.comparison.results import Files, Result
from benchmarks.comparison.rows import JobRow, write_csv
from benchmarks.paper import Point, points_of, table
from prophet_mx.profiling.gradient_profile import GradientProfile
from support.results import about, jobs

CELLS = [f"net,batch=64,device=m60,script=gluon,workers=2,servers=1,rate={rate}Gbit" for rate in (1, 3)]
TRAINING = CELLS[0].rsplit(",", 1)[0]
TIMES = {"pushpull": (2400, 2500, 2300), "p3": (2100, 2100, 2100), "credit": (2200, 2200, 2200), "prophet": (1750, 1750, 1750)}


@pytest.fixture
def result(tmp_path):
    """Two rates of a training of two layers, with the profile that each has learned: steps, and no compute times."""
    files = Files.named(tmp_path, "some")
    rows = [row for cell in CELLS for name, times in TIMES.items() for row in jobs(name, *times, cell=cell, bound_ms=None)]
    write_csv(files.data, JobRow._fields, rows)
    profile = GradientProfile.from_samples("net", ["a", "b"], [4_000_000, 40_000_000], [[0.1, 0.0]])
    learned = {cell: {"compute": 0.4, "profile": profile.to_json()} for cell in CELLS}
    return Result("paper-setup", about(profiles=learned), "", files)


def test_each_cell_is_measured_and_each_training_is_simulated_once(result):
    points = points_of(result, [125e6, 1.25e9], {})
    assert [(point.cell, point.rate, point.how) for point in points] == [
        (CELLS[0], 125e6, "measured"),
        (CELLS[1], 375e6, "measured"),
        (TRAINING, 125e6, "simulated"),
        (TRAINING, 1.25e9, "simulated"),
    ]
    first, _, slow, fast = points
    assert (first.plain, first.priority, first.credit, first.prophet) == (2400, 2100, 2200, 1750)
    assert slow.plain >= slow.prophet > fast.prophet >= 400  # ms: the compute time of the profile


def test_prophet_is_compared_with_the_faster_of_both():
    assert Point("net", 1e9, "measured", 2400.0, 2100.0, 2200.0, 1750.0).gain == pytest.approx(0.2)
    assert Point("net", 1e9, "measured", 2400.0, 2100.0, None, 1750.0).gain is None


def test_the_table_has_all_points_and_the_range_of_gains(result):
    text = table(points_of(result, [125e6], {}), {})
    assert f"| {TRAINING} | 1 Gbit/s | measured | 2400 | 2100 | 2200 | 1750 | +20% |" in text and "| simulated |" in text
    assert "measured: +20% to +20%, in the median +20%; simulated: " in text and "messages cost nothing" in text
    assert "cost what they were fitted with" in table(points_of(result, [125e6], {}), {"message_seconds": 1e-4})
