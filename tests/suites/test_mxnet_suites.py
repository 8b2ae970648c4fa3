"""The runner of MXNet's own test suites, on two files of made-up tests in their places."""

from textwrap import dedent

import pytest

from suites import mxnet_suites
from support.cluster import package_env

SOUND = """
    import mxnet as mx
    from nose.tools import raises

    def test_sum():
        kv, out = mx.kv.create(), mx.nd.zeros(2)
        kv.init(3, out)
        kv.push(3, [mx.nd.ones(2)] * 3)
        kv.pull(3, out)
        assert out.asnumpy().tolist() == [3, 3]

    @raises(ZeroDivisionError)
    def test_expected_error():
        1 / 0

    @raises(ZeroDivisionError)
    def test_missing_error():
        pass
"""
PLAIN_ONLY = """
    import mxnet as mx

    def test_own_class():
        assert type(mx.kvstore.create("device")) is mx.kvstore.KVStore
"""


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder with two of the suites that the runner knows, whose processes start sooner."""
    for suite, text in zip(mxnet_suites.SUITES, (SOUND, PLAIN_ONLY)):
        path = tmp_path / suite.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    monkeypatch.setattr(mxnet_suites, "package_env", lambda extra, light: package_env(extra))
    return tmp_path


def test_what_fails_without_the_wrapper_as_well_is_listed_only(checkout, capfd):
    assert mxnet_suites.main(["--mxnet", str(checkout), "--only", "test_kvstore.py"]) == 0
    table, alike, verdict = capfd.readouterr().out.strip().split("\n\n")
    assert "test_kvstore.py |  | 1 failed, 2 passed | 1 failed, 2 passed |" in table
    assert alike.startswith("fails plain as well:\ntest_kvstore.py: test_missing_error: plain failed AssertionError")
    assert verdict == "whatever passes plain passes wrapped"


def test_what_fails_only_with_the_wrapper_is_a_fault(checkout, capfd):
    assert mxnet_suites.main(["--mxnet", str(checkout), "--only", "test_gluon_trainer.py"]) == 1
    output, errors = capfd.readouterr()
    table, worse, verdict = output.strip().split("\n\n")
    assert "test_gluon_trainer.py |  | 1 passed | 1 failed |" in table
    assert worse.startswith("WORSE WRAPPED THAN PLAIN:\ntest_gluon_trainer.py: test_own_class: plain passed; wrapped failed")
    assert verdict == "not all that passes plain passes wrapped"
    assert "def test_own_class():" in errors  # what the wrapped run wrote


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("--mxnet no/such/folder", "'no/such/folder' is no checkout of MXNet 1.9.1: it has no tests/python/unittest/test_kvstore.py"),
        (
            "--mxnet . --only nonsense",
            "allowed: a part of test_kvstore.py, test_gluon_trainer.py, dist_sync_kvstore.py --type=gluon_step_cpu",
        ),
        ("--mxnet . --workers 0", "--workers is a whole number from 1"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_runs(arguments, message, capfd):
    with pytest.raises(SystemExit) as ended:
        mxnet_suites.main(arguments.split())
    assert ended.value.code == 2
    assert message in capfd.readouterr().err
