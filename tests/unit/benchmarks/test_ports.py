"""The sweep over ports of a switch: a row of its table, and the law that it tries."""

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import ports
from benchmarks.ports import HEADINGS, PortCell, Sizes, main


def test_a_row_has_the_chosen_sizes_beside_the_best_ones(capsys, monkeypatch):
    monkeypatch.setattr(ports, "GRID", ((1.0, 0), (0.5, 2)))
    assert main(["--machines", "2,1", "--ports", "64KB"]) == 0
    head, _, line = capsys.readouterr().out.splitlines()
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert head.strip("| ").split(" | ") == list(HEADINGS)
    assert cells[:3] == ["2", "1", "64"]
    chosen, best = map(float, cells[3:5])
    assert chosen >= best and cells[7].endswith("%")


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 16), st.integers(1, 8), st.floats(16e3, 1e7), st.floats(2e-5, 4e-4))
def test_the_law_never_takes_larger_units_and_leaves_two_in_flight(workers, servers, port, message):
    cell = PortCell(workers, servers, port, message)
    small, large = cell.law(port / 2), cell.law(port)
    assert small.unit <= large.unit <= cell.chosen
    assert small.window <= large.window
    assert large.window >= 2 * large.unit
    assert isinstance(large, Sizes)
