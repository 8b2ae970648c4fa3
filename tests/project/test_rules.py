"""The rules of tests/support/rules.py, on made-up tests."""

import re
from textwrap import dedent

from support.commands import python
from support.paths import TESTS

FILES = {
    "test_one.py": """
        import pytest, random
        from hypothesis import given, strategies as st

        drawn = []

        @pytest.mark.skip(reason="needs atheris: pip install 'atheris>=2.3'")
        def test_allowed():
            pass

        @pytest.mark.skip(reason="there is no ssh (Debian: apt-get install openssh-client)")
        def test_of_a_package():
            pass

        @pytest.mark.xfail
        def test_expected_to_fail():
            assert False

        @given(st.integers(0, 2**60))
        def test_of_hypothesis(number):
            drawn.append(number)

        def test_random(rng):
            print("\\ndrawn", drawn, rng.random())
        """,
    "test_two.py": """
        import pytest
        pytest.importorskip("no_such_package")
        """,
}


def run(folder, *arguments, **env):
    """The output of pytest on the made-up files, with the rules and nothing else of the project."""
    for name, text in FILES.items():
        (folder / name).write_text(dedent(text))
    return python(
        "-m",
        "pytest",
        "-p",
        "support.rules",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        "--rootdir",
        folder,
        "-s",
        "--continue-on-collection-errors",
        *arguments,
        folder,
        cwd=folder,
        package=False,
        env={"PYTHONPATH": str(TESTS), "CI": "", "CI_WITHOUT": "", **env},
    ).stdout


def test_in_ci_a_skip_for_another_reason_is_a_failure_and_the_seed_in_the_header_gives_the_same_numbers_again(tmp_path):
    usual = run(tmp_path)
    [seed] = re.findall(r"^to draw the same random numbers: (--hypothesis-seed=\d+)$", usual, re.MULTILINE)
    again, other = run(tmp_path, seed, CI="1"), run(tmp_path, CI="1", CI_WITHOUT="gcc openssh-client")
    assert "= 2 passed, 3 skipped, 1 xfailed in" in usual, usual
    assert "= 2 passed, 1 skipped, 1 xfailed, 2 errors in" in again, again
    assert "= 2 passed, 2 skipped, 1 xfailed, 1 error in" in other, other
    for output in (again, other):
        assert "for this reason (support.rules.ALLOWED): Skipped: could not import 'no_such_package'" in output, output
    drawn = [re.findall("^drawn .*", output, re.MULTILINE) for output in (usual, again, other)]
    assert len(drawn[0]) == 1 and drawn[0] == drawn[1] != drawn[2]
