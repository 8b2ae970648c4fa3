"""One process of one of MXNet's own test suites: mxnet_suites.py starts it and reads its output.

usage: mxnet_suite.py plain|wrapped FOLDER SUITE [ARGUMENT ...]

It works in FOLDER, where suites leave files. ``wrapped``: every native store that the suite makes, of whatever type, is wrapped. The
outcome of each test, or of a script as a whole, is a line of JSON after the word "suite:".
"""

import json
import os
import runpy
import sys
import traceback
import types
import weakref
from typing import Any, Callable, Dict

MODE, FOLDER, SUITE, *ARGUMENTS = sys.argv[1:]
os.chdir(FOLDER)  # before the import: a server runs nothing after it

# Also before the suite is run, which may put its checkout's uncompiled mxnet on the path.
import mxnet as mx  # noqa: E402


def say(**outcome: Any) -> None:
    print("\nsuite: " + json.dumps(outcome), flush=True)


def words(error: BaseException) -> str:
    """The error's type and the beginning of its message, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def wrap_stores() -> "weakref.WeakSet[mx.kvstore.KVStore]":
    """Wrap every native store from now on. Returns those whose traffic can be scheduled, a set that grows.

    It does not keep them alive: MXNet, plain as well, aborts at the end of a process whose store was never freed.
    """
    from prophet_mx import ScheduledKVStore

    create, scheduled = mx.kvstore.create, weakref.WeakSet()

    def create_wrapped(name: str = "local") -> Any:
        store = create(name)
        if type(store) is not mx.kvstore.KVStore:
            return store
        wrapped = ScheduledKVStore(store)
        if wrapped.stats()["policy"] != "off":
            scheduled.add(wrapped)
        return wrapped

    mx.kvstore.create = mx.kvstore.base.create = create_wrapped
    return scheduled


def provide_gpus() -> None:
    """Where there are fewer than the two GPUs that suites take, they take CPU devices of the same numbers."""
    if mx.context.num_gpus() < 2:
        mx.gpu = mx.cpu


def provide_nose() -> None:
    """The three decorators and checks of nose that suites use, where nose is not there; it does not work from Python 3.10 on."""

    def raises(*errors: type) -> Callable[[Callable], Callable]:
        def decorate(test: Callable) -> Callable:
            def checked() -> None:
                assert_raises(errors, test)

            return make_decorator(test)(checked)

        return decorate

    def make_decorator(test: Callable) -> Callable[[Callable], Callable]:
        def named(new: Callable) -> Callable:
            new.__name__, new.__doc__ = test.__name__, test.__doc__
            return new

        return named

    def assert_raises(errors: Any, function: Callable, *args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except errors:
            return
        raise AssertionError(f"{function.__name__} did not raise {errors}")

    nose, tools = types.ModuleType("nose"), types.ModuleType("nose.tools")
    nose.tools, tools.raises, tools.make_decorator, tools.assert_raises = tools, raises, make_decorator, assert_raises
    sys.modules.update({"nose": nose, "nose.tools": tools})


def accept_float_shapes() -> None:
    """``reshape`` takes 2.0 for 2, as it does in Python before 3.10: the suites divide shapes with ``/``."""
    reshape = mx.nd.NDArray.reshape

    def reshape_whole(array: mx.nd.NDArray, *shape: Any, **kwargs: Any) -> mx.nd.NDArray:
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (list, tuple)) else shape
        return reshape(array, *map(int, sizes), **kwargs)

    mx.nd.NDArray.reshape = reshape_whole


def wait_for_pulls() -> None:
    """Let ``pull`` return when the values are there. The compression tests compare one pull with the next, without reading the first
    before they push in between; in MXNet, plain as well, the first may then give what the push made."""
    pull = mx.kvstore.KVStore.pull

    def pull_now(*args: Any, **kwargs: Any) -> None:
        pull(*args, **kwargs)
        mx.nd.waitall()

    mx.kvstore.KVStore.pull = pull_now


class Outcomes:
    """A plugin of pytest that says how each test ended."""

    def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
        import pytest

        error = call.excinfo.value if call.excinfo else None
        if error is not None:
            skipped = isinstance(error, pytest.skip.Exception)
            say(test=item.name, outcome="skipped" if skipped else "failed", why=words(error))
        elif call.when == "call":
            say(test=item.name, outcome="passed")


def run_tests() -> int:
    """Run a module of test functions."""
    import pytest

    provide_nose()
    return pytest.main(["-s", "-q", "-c", os.devnull, f"--rootdir={FOLDER}", "-p", "no:cacheprovider", SUITE], plugins=[Outcomes()])


def run_script() -> Dict[str, Any]:
    """Run a script. The names it made, so that its stores live on.

    If it raises, the process ends at once: in plain MXNet it would wait for the other workers.
    """
    sys.path.insert(0, os.path.dirname(SUITE))
    sys.argv = [SUITE, *ARGUMENTS]
    try:
        return runpy.run_path(SUITE, run_name="__main__")
    except Exception as error:
        traceback.print_exc()
        say(test="", outcome="failed", why=words(error))
        sys.stdout.flush()
        os._exit(1)


def main() -> int:
    stores = wrap_stores() if MODE == "wrapped" else ()
    provide_gpus()
    accept_float_shapes()
    if "--type=compressed_cpu" in ARGUMENTS:
        wait_for_pulls()
    if os.path.basename(SUITE).startswith("test_") and "DMLC_ROLE" not in os.environ:
        code = run_tests()
    else:
        code = 0
        run_script()
        say(test="", outcome="passed")
    stats = [store.stats() for store in stores]
    for failure in filter(None, (stat["failure"] for stat in stats)):
        say(test="", outcome="failed", why=f"scheduling ended: {failure}")
        code = 1
    if stats:
        say(units=sum(stat["units"] for stat in stats))
    return code


if __name__ == "__main__":
    sys.exit(main())
