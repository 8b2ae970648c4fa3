"""``prophet-mx launch --schedule``: scripts that know nothing of prophet_mx are scheduled, and their result stays the same."""

import os
import pickle
import subprocess
import sys
from textwrap import dedent

import numpy as np
import pytest

from prophet_mx.launcher.environment import with_hook
from prophet_mx.launcher.launch import run_job
from prophet_mx.schedule import FOLDER
from support.cluster import PACKAGE_PATH, package_env
from support.commands import python
from support.paths import ROOT, SCRIPTS

DOCS = ROOT / "docs"
LIMIT = 60
HALVES = {"worker 0": {"HALF": "0"}, "worker 1": {"HALF": "1"}}


def job(command, schedule, workers=2, **env):
    result = run_job(command, workers, 1, env=package_env(env), role_env=HALVES, timeout=LIMIT, grace=5.0, schedule=schedule)
    assert result.exit_code == 0, result.logs()
    return result


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process without servers gets on all data, and what it wrote to stderr; it runs with the hook, too."""
    path = tmp_path_factory.mktemp("alone") / "weights.pickle"
    done = hooked(SCRIPTS / "unmodified.py", "alone", path, DMLC_ROLE="worker")
    assert done.returncode == 0, done.stderr
    return pickle.loads(path.read_bytes()), done.stderr


@pytest.mark.parametrize("kind, start", [("module", [str(SCRIPTS / "unmodified.py")]), ("trainer", ["-m", "unmodified"])])
def test_the_store_that_module_or_trainer_makes_of_a_string_is_scheduled(kind, start, alone, tmp_path):
    """Two workers, on half of the data each, get what one process gets on all of it."""
    path = os.pathsep.join([package_env()["PYTHONPATH"], str(SCRIPTS)])
    result = job([sys.executable, *start, kind, str(tmp_path / "weights.pickle")], True, PYTHONPATH=path)
    for worker in result.workers:
        assert "ScheduledKVStore sent" in worker.output and "local: KVStore" in worker.output, result.logs()
        assert int(worker.output.partition(" sent ")[2].split()[0]) > 0, result.logs()
        assert worker.output.count("--schedule: the store 'dist_sync' is scheduled, policy prophet") == 1, result.logs()
        assert "made no dist_sync store" not in worker.output
    weights = pickle.loads((tmp_path / "weights.pickle").read_bytes())
    assert len(weights) == 4
    for name, value in weights.items():
        np.testing.assert_allclose(value, alone[0][name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_worker_that_makes_no_dist_sync_store_is_told(alone):
    assert alone[1].splitlines()[-1].startswith("prophet_mx: --schedule: this script made no dist_sync store")


@pytest.mark.parametrize("schedule", [False, True])
def test_it_is_off_unless_asked_for(schedule):
    result = job(["sh", "-c", "echo $PYTHONPATH"], schedule, workers=1)
    assert [FOLDER in process.output for process in result.processes] == 3 * [schedule]


def test_a_script_that_wraps_its_store_itself_still_may_and_byteschedulers_variables_are_named(tmp_path):
    """Also: another sitecustomize, as companies have them, runs as before, and the module path of ByteScheduler works."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.custom = __file__\n")
    (tmp_path / "train.py").write_text(
        dedent("""
        import sys
        import mxnet as mx
        import sitecustomize
        from prophet_mx.mxnet.kvstore import ScheduledKVStore
        print('custom', sys.custom, sitecustomize.__file__)
        kv = ScheduledKVStore(mx.kv.create('dist_sync'), policy='credit')
        try:
            ScheduledKVStore(kv)
        except ValueError as error:
            print('twice:', error)
        kv.init('a', mx.nd.zeros(2000000))
        value = mx.nd.zeros(2000000)
        kv.pushpull('a', mx.nd.ones(2000000), out=value)
        assert (value == 1).asnumpy().all()
        print('units', kv.stats()['units'], 'policy', kv.stats()['policy'])
        """)
    )
    path = os.pathsep.join([package_env(light=False)["PYTHONPATH"], str(tmp_path)])  # the tests' own sitecustomize is not wanted
    result = job(
        [sys.executable, str(tmp_path / "train.py")],
        True,
        workers=1,
        PYTHONPATH=path,
        BYTESCHEDULER_PARTITION="500000",
        BYTESCHEDULER_CREDIT_TUNING="1",
        BYTESCHEDULER_SURPRISE="1",
    )
    log = result.workers[0].output
    other = str(tmp_path / "sitecustomize.py")
    assert f"custom {other} {other}" in log
    assert "units 4 policy credit" in log, log  # 2,000,000 parameters in partitions of 500,000
    assert "twice: this store is already a ScheduledKVStore" in log
    [line] = [line for line in log.splitlines() if "variables of ByteScheduler" in line and "UNIT" in line]
    assert "BYTESCHEDULER_PARTITION=500000 is read as PROPHET_UNIT=2000000" in line
    assert "BYTESCHEDULER_CREDIT_TUNING is not needed" in line and "BYTESCHEDULER_SURPRISE is not known" in line


def hooked(*arguments, **env):
    return python(*arguments, env=with_hook(package_env(env)))


def test_a_program_without_mxnet_is_left_alone():
    done = hooked("-c", "import sys; print({'mxnet', 'prophet_mx', 'numpy'}.intersection(sys.modules) or '[]')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_a_python_without_prophet_mx_is_an_error_that_says_so(tmp_path):
    (tmp_path / "mxnet.py").write_text("")  # of this, only the import matters
    env = {"PYTHONPATH": os.pathsep.join([FOLDER, str(tmp_path)])}
    done = python("-c", "import sys; sys.modules['prophet_mx'] = None; import mxnet", env=env, cwd=tmp_path, expect=1)
    message = f"ImportError: prophet-mx launch --schedule needs prophet_mx, which {os.path.abspath(sys.executable)} does not have"
    assert done.stderr.splitlines()[-1].startswith(message)


@pytest.mark.parametrize("before", [None, "/x:/y"])
def test_the_line_for_other_launchers_puts_the_hook_on_the_path(before):
    [line] = [line for line in (DOCS / "clusters.md").read_text().splitlines() if line.startswith("export PYTHONPATH=")]
    python_here = f'python() {{ PYTHONPATH={PACKAGE_PATH} {sys.executable} "$@"; }}'
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        ["bash", "-c", f"{python_here}; {line}; printenv PYTHONPATH"],
        timeout=LIMIT,
        stdout=subprocess.PIPE,
        env=env if before is None else {**env, "PYTHONPATH": before},
        text=True,
    )
    assert done.stdout.strip() == os.pathsep.join([FOLDER] + ([before] if before else []))
