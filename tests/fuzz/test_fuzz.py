"""The parsers of files and settings: any bytes give a value that keeps the rules, or an error of prophet_mx.

'make fuzz' tries many more."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.commands import python

FUZZ = Path(__file__).resolve().parent
sys.path.append(str(FUZZ))

from parsers import PARSERS, seeds  # noqa: E402

RUNS = 5000


@pytest.mark.parametrize("name", PARSERS)
def test_seeds_and_random_bytes(name):
    @settings(max_examples=200)
    @given(st.binary(max_size=300))
    def try_bytes(data):
        PARSERS[name](data)

    for seed in seeds(name):
        PARSERS[name](seed)
    try_bytes()


@pytest.mark.skipif(find_spec("atheris") is None, reason="needs atheris: pip install 'atheris>=2.3'")
@pytest.mark.parametrize("name", PARSERS)
def test_a_short_run_of_the_fuzzer(name, tmp_path):
    done = python(
        FUZZ / "fuzz.py",
        name,
        f"-runs={RUNS}",
        "-seed=1",
        f"-artifact_prefix={tmp_path}/",
        tmp_path,
        cwd=tmp_path,
        timeout=100,
        merged=True,
    )
    assert done.returncode == 0 and f"Done {RUNS}" in done.stdout, done.stdout[-4000:]


@pytest.mark.skipif(find_spec("atheris") is None, reason="needs atheris: pip install 'atheris>=2.3'")
def test_the_fuzzer_finds_what_is_wrong(tmp_path):
    """With a parser that lets one kind of wrong value through, it says so."""
    code = (
        f"import sys; sys.argv[0] = 'fuzz.py'; sys.path.insert(0, {str(FUZZ)!r}); "
        "import prophet_mx.config as c; c.ConfigError = KeyError; import fuzz; fuzz.main()"
    )
    done = python("-c", code, "config", f"-runs={RUNS}", "-seed=1", f"-artifact_prefix={tmp_path}/", cwd=tmp_path, timeout=100, merged=True)
    assert done.returncode != 0 and "KeyError" in done.stdout, done.stdout[-4000:]
