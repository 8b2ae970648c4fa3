"""The command that records an iteration for README's picture, with a small model."""

import pytest

from benchmarks.pictures import record
from benchmarks.pictures.recordings import load_recording
from benchmarks.pictures.speedups import NAMES
from prophet_mx.profiling.gradient_profile import Gradient, GradientProfile

pytestmark = pytest.mark.alone


def test_an_iteration_of_each_method_is_recorded(tmp_path):
    gradients = [Gradient(f"p{i}", size, 0.01, 0.02) for i, size in enumerate((100_000, 400_000, 1_000_000))]
    GradientProfile("small", gradients, ((2,), (1,), (0,))).save(str(tmp_path / "small.json"))
    cell = f"{tmp_path}/small.json,scale=1,compute=0.2,update=servers,keys=names,rate=200Mbit"
    file = tmp_path / "iteration.json"
    assert record.main(["--cell", cell, "--warmup", "2", "--iterations", "3", "--out", str(file), "--keep", str(tmp_path / "kept")]) == 0
    recording = load_recording(file)
    assert list(recording.iterations) == list(NAMES) and recording.about["gradients"] == 3
    assert (tmp_path / "kept" / "prophet" / "counts.json").exists()
    for one in recording.iterations.values():
        assert one.seconds > recording.about["bound_ms"] / 1e3
        assert {span.gradient for span in one.sends} == {span.gradient for span in one.receives} == {0, 1, 2}
        carried = sum(span.end - span.begin for span in one.sends)
        assert carried > 1_500_000 / 25e6 / 2  # each of the two workers has at most the whole link
        assert 0 <= one.forward[0].begin - one.first_layer < 0.01
