"""``prophet-mx launch --schedule``: scripts that know nothing of prophet_mx are scheduled, and their result stays the same."""
import os
import pickle
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from cluster import package_env
from prophet_mx.launch import run_job
from prophet_mx.schedule import FOLDER, with_hook

JOBS = Path(__file__).resolve().parent / "jobs"
LIMIT = 60
HALVES = {"worker 0": {"HALF": "0"}, "worker 1": {"HALF": "1"}}


def job(command, schedule, workers=2, **env):
    result = run_job(command, workers, 1, env=package_env(env), role_env=HALVES, timeout=LIMIT, grace=5.0, schedule=schedule)
    assert result.exit_code == 0, result.logs()
    return result


def trained(path, schedule, *command, **env):
    """The weights that a job of jobs/unmodified.py leaves, after a look at what its workers said."""
    result = job([sys.executable, *command, str(path)], schedule, **env)
    for worker in result.workers:
        sent = int(worker.output.partition(" sent ")[2].split()[0])
        assert (sent > 0) == schedule, result.logs()
        assert ("ScheduledKVStore sent" in worker.output) == schedule and "local: KVStore" in worker.output
        assert worker.output.count("--schedule: the store 'dist_sync' is scheduled, policy prophet") == schedule, result.logs()
        assert "made no dist_sync store" not in worker.output
    weights = pickle.loads(path.read_bytes())
    assert len(weights) == 4
    return weights


@pytest.mark.cluster
def test_a_string_given_to_module(tmp_path):
    script = str(JOBS / "unmodified.py")
    plain, scheduled = (trained(tmp_path / f"{schedule}.pickle", schedule, script, "module") for schedule in (False, True))
    assert sorted(plain) == sorted(scheduled)
    for name, value in plain.items():
        assert np.array_equal(scheduled[name], value), name


@pytest.mark.cluster
def test_a_string_given_to_trainer_in_a_module_of_a_package(tmp_path):
    """Two workers on half of the data each get what one process gets on all of it."""
    path = os.pathsep.join([package_env()["PYTHONPATH"], str(JOBS)])
    scheduled = trained(tmp_path / "scheduled.pickle", True, "-m", "unmodified", "trainer", PYTHONPATH=path)
    done = python(str(JOBS / "unmodified.py"), "trainer", str(tmp_path / "alone.pickle"))
    assert done.returncode == 0, done.stderr
    assert "--schedule" not in done.stderr
    for name, value in pickle.loads((tmp_path / "alone.pickle").read_bytes()).items():
        np.testing.assert_allclose(scheduled[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.cluster
def test_a_script_that_wraps_its_store_itself_still_may_and_byteschedulers_variables_are_named(tmp_path):
    """Also: another sitecustomize, as companies have them, runs as before, and the module path of ByteScheduler works."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.custom = __file__\n")
    (tmp_path / "train.py").write_text(dedent("""
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
        assert (value == 2).asnumpy().all()
        print('units', kv.stats()['units'], 'policy', kv.stats()['policy'])
        """))
    path = os.pathsep.join([package_env()["PYTHONPATH"], str(tmp_path)])
    result = job([sys.executable, str(tmp_path / "train.py")], True, PYTHONPATH=path,
                 BYTESCHEDULER_PARTITION="500000", BYTESCHEDULER_CREDIT_TUNING="1", BYTESCHEDULER_SURPRISE="1")
    logs = [worker.output for worker in result.workers]
    for log in logs:
        other = str(tmp_path / "sitecustomize.py")
        assert f"custom {other} {other}" in log
        assert "units 4 policy credit" in log, log       # 2,000,000 parameters in partitions of 500,000
        assert "twice: this store is a ScheduledKVStore already" in log
    [line] = [line for line in "\n".join(logs).splitlines() if "variables of ByteScheduler" in line and "UNIT" in line]  # by rank 0
    assert "BYTESCHEDULER_PARTITION=500000 is taken as PROPHET_UNIT=2000000" in line
    assert "BYTESCHEDULER_CREDIT_TUNING is not needed" in line and "BYTESCHEDULER_SURPRISE is not known" in line


def python(*arguments, **env):
    return subprocess.run([sys.executable, *arguments], env=with_hook({**os.environ, **package_env(env)}), timeout=LIMIT,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)


def test_a_program_without_mxnet_is_left_alone():
    done = python("-c", "import sys; print({'mxnet', 'prophet_mx', 'numpy'}.intersection(sys.modules) or '[]')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_a_worker_that_makes_no_store_is_told():
    done = python("-c", "import mxnet as mx; print(type(mx.kv.create('local')).__name__)", DMLC_ROLE="worker")
    assert done.stdout == "KVStore\n"
    assert done.stderr.splitlines()[-1].startswith("prophet_mx: --schedule: this script made no dist_sync store")


def test_a_python_without_prophet_mx_is_an_error_that_says_so(tmp_path):
    (tmp_path / "mxnet.py").write_text("")      # of this, only the import matters
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([FOLDER, str(tmp_path)])}
    done = subprocess.run([sys.executable, "-c", "import sys; sys.modules['prophet_mx'] = None; import mxnet"], env=env,
                          timeout=LIMIT, cwd=str(tmp_path), stderr=subprocess.PIPE, universal_newlines=True)
    assert done.returncode == 1
    message = f"ImportError: prophet-mx launch --schedule needs prophet_mx, which {sys.executable} does not have"
    assert done.stderr.splitlines()[-1].startswith(message)


def test_the_hook_is_first_on_the_path_and_there_once():
    once = with_hook({"A": "b", "PYTHONPATH": os.pathsep.join(["x", "", "y"])})
    assert once == {"A": "b", "PYTHONPATH": os.pathsep.join([FOLDER, "x", "y"])} == with_hook(once)
