"""Cells that are measured one after another become one result."""

import pytest

from benchmarks.comparison.joined import joined
from benchmarks.comparison.metadata import made
from benchmarks.comparison.results import Files, Result
from benchmarks.comparison.rows import JobRow, write_csv
from support.results import about, jobs

CELLS = ["one", "two", "three"]


@pytest.fixture
def result(tmp_path):
    """result(rows, metadata): as it is read."""

    def read(rows, described):
        files = Files.named(tmp_path, "some")
        write_csv(files.data, JobRow._fields, rows)
        return Result("some", described, "", files)

    return read


def described(commit, date, **more):
    return about(commit=commit * 40, date=date, cells=CELLS, **more)


def names(rows):
    return [(row.cell, row.time_ms) for row in rows]


def test_the_first_cell_stands_alone():
    rows, whole = joined(None, jobs("prophet", 160, cell="two"), described("a", "05:00", only=["two"], best={"two": ["x"]}), "f")
    assert names(rows) == [("two", 160.0)] and whole["cells"] == CELLS and "only" not in whole
    assert list(whole["measured"]) == ["two"] and whole["fingerprint"] == "f" and whole["best"] == {"two": ["x"]}


def test_a_cell_replaces_its_own_rows_and_no_others(result):
    old = result([*jobs("prophet", 1, 2, cell="one"), *jobs("prophet", 3, cell="three")], {**described("a", "05:00"), "fingerprint": "f"})
    rows, whole = joined(old, jobs("prophet", 4, cell="two"), described("a", "06:00"), "f")
    assert names(rows) == [("one", 1.0), ("one", 2.0), ("two", 4.0), ("three", 3.0)]
    rows, whole = joined(result(rows, whole), jobs("p3", 5, cell="one"), described("b", "07:00"), "f")
    assert names(rows) == [("one", 5.0), ("two", 4.0), ("three", 3.0)]
    assert [(cell, part["commit"][0], part["date"]) for cell, part in whole["measured"].items()] == [
        ("one", "b", "07:00"),
        ("two", "a", "06:00"),
        ("three", "a", "05:00"),
    ]


def test_a_result_is_as_old_as_its_oldest_cell(result):
    old = result(jobs("prophet", 1, cell="one"), {**described("a", "05:00", dirty=True), "fingerprint": "e"})
    _, whole = joined(old, jobs("prophet", 4, cell="two"), described("b", "06:00"), "f")
    assert (whole["commit"], whole["dirty"], whole["date"], whole["fingerprint"]) == ("a" * 40, True, "05:00 to 06:00", "")
    assert made(whole).startswith("Commit aaaaaaaaa and later ones with changes that are in no commit, 05:00 to 06:00; ")


def test_a_cell_that_the_question_no_longer_has_goes(result):
    old = result(jobs("prophet", 1, cell="four"), {**described("a", "05:00", best={"four": ["x"]}), "fingerprint": "e"})
    rows, whole = joined(old, jobs("prophet", 4, cell="two"), described("b", "06:00"), "f")
    assert names(rows) == [("two", 4.0)] and whole["best"] == {} and whole["fingerprint"] == "f"
