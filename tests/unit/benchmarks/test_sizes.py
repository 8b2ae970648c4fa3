"""The sweep of sizes: which cells, what is tried, and what is written."""

import json

import pytest

from benchmarks import sizes
from benchmarks.sizes import SimulatedCell, Sizes, all_cells, selected, sweep


def test_cells_are_selected_by_their_values():
    cells = all_cells()
    assert len(set(cells)) == len(cells)
    found = selected(cells, ["workers=2,servers=1,message=200us,rate=1Gbit", "model=vgg16,compute=1s"])
    assert SimulatedCell("resnet50_v1", 0.15, 2, 1, 125e6, 200e-6) in found and SimulatedCell("vgg16", 1.0, 2, 1, 125e6, 50e-6) in found
    assert len(found) == 5 and found == [cell for cell in cells if cell in found]
    for wrong in ("workers=3", "cores=2", "workers", "rate=fast"):
        with pytest.raises(ValueError):
            selected(cells, [wrong])


@pytest.mark.parametrize("chosen", [1000, 4000])
def test_a_sweep_finds_the_best_of_one_size_after_the_other(chosen):
    """Best at a unit of 500 bytes, a window of one of those and a lead limit of three, each with what a round trip carries."""
    tried = []

    def time(these):
        tried.append(these)
        unit, window, lead = (size or default for size, default in zip(these, (chosen, 2000, 4000)))
        return 1 + abs(unit - 500) / 1000 + abs(window - 510) / 10000 + abs(lead - 1510) / 10000

    assert sweep(time, chosen, 10, lambda unit: 100.0 if unit < 400 else 0.0) == (Sizes(500, 510, 1510), 1.0)
    assert tried[0] == Sizes() and min(one.unit for one in tried if one.unit) >= 400


def test_nothing_is_better_than_what_is_chosen():
    assert sweep(lambda sizes: 1.0 + any(sizes), 1000, 10, lambda unit: 0.0) == (Sizes(), 1.0)


def test_the_command_writes_the_regret(tmp_path, capsys):
    cells = "model=resnet50_v1,workers=2,servers=1,message=200us,rate=1Gbit,compute=150ms"
    code = sizes.main(["--cells", cells, "--results", str(tmp_path), "--name", "mine"])
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| resnet50_v1 |"))
    regret = float(row.split("|")[-2].split("%")[0]) / 100
    written = (tmp_path / "mine.md").read_text()
    assert row in written and "python -m benchmarks.sizes --cells" in written
    assert regret >= 0 and code == ("over 3%" in row)
    assert json.loads((tmp_path / "mine.json").read_text())["commit"] and "regret" in (tmp_path / "mine.csv").read_text()
