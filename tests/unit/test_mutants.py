"""The list of faults that 'make mutants' plants: each can be planted, and names tests that there are."""

import pytest

from mutants.planted import MUTANTS
from mutants.run import main
from support.paths import ROOT, TESTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.file}: {mutant.does}")
def test_its_text_is_in_its_file_once_and_its_tests_are_there(mutant):
    """A change of that place changes the list as well."""
    assert (ROOT / mutant.file).read_text(encoding="utf-8").count(mutant.old) == 1 and mutant.new != mutant.old
    for test in mutant.tests:
        path, _, name = test.partition("::")
        assert f"def {name or 'test_'}" in (TESTS / path).read_text(encoding="utf-8"), test
    assert len({test.startswith("pytorch/") for test in mutant.tests}) == 1


def test_no_fault_is_planted_twice():
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)


def test_one_is_found_by_a_text_and_a_wrong_text_is_refused(capsys):
    assert main(["steps.py", "--list"]) == 0
    assert "prophet_mx/profiling/steps.py: a step begins after a larger gap only (unit/profiling/test_steps.py)" in capsys.readouterr().out
    with pytest.raises(SystemExit) as caught:
        main(["no such text"])
    assert caught.value.code == 2 and "no mutant has 'no such text'" in capsys.readouterr().err
