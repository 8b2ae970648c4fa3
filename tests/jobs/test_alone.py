"""A worker that makes no dist store says so, and a script without a job."""

import pytest

from support.cluster import package_env, run_cluster
from support.commands import python

JOB = """
    import sys, time
    import mxnet as mx
    from prophet_mx.mxnet import creation

    creation.MINUTE = 0.5
    from prophet_mx import ScheduledKVStore

    kv = mx.kv.create(sys.argv[1])
    if sys.argv[2] == "wrapped":
        kv = ScheduledKVStore(kv)
    time.sleep(1.5)
    print("done")
"""


@pytest.mark.parametrize("kind, wrapped, told", [("local", "", True), ("local", "wrapped", True), ("dist_sync", "", False)])
def test_a_worker_that_trains_alone_says_so_in_its_first_minute(kind, wrapped, told):
    job = run_cluster(JOB, 1, 1, args=[kind, wrapped], grace=1)
    [worker] = job.workers
    assert worker.returncode == 0 and "done" in worker.output, job.logs()
    assert ("has made no dist store but 'local' in its first 0.5 s: it trains alone" in worker.output) == told, worker.output


FIRST = """
import os, sys, mxnet as mx
from prophet_mx import KVStoreError, ScheduledKVStore

ScheduledKVStore(mx.kv.create("local"))
net = mx.gluon.nn.Dense(1, in_units=1)
net.initialize()
trainer = mx.gluon.Trainer(net.collect_params(), "sgd", kvstore="dist_sync")
for make in (lambda: mx.kv.create("dist_device_sync"), trainer._init_kvstore):
    try:
        make()
    except mx.MXNetError as error:
        assert isinstance(error, KVStoreError)
        print(error)
os.environ.update(DMLC_ROLE="worker", DMLC_NUM_WORKER="1", DMLC_NUM_SERVER="1", DMLC_PS_ROOT_URI="127.0.0.1")
mx.kv.create("dist_sync")
"""


def test_a_first_run_without_a_launcher_says_what_to_type(tmp_path):
    script = tmp_path / "my train.py"
    script.write_text(FIRST)
    done = python(script, "--epochs", 3, env=package_env(), timeout=60, expect=1)
    typed = f"Start the job with: prophet-mx launch -n 2 -s 1 -- python '{script}' --epochs 3\n"
    every = "DMLC_ROLE, DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT, DMLC_NUM_WORKER, DMLC_NUM_SERVER"
    for kind in ("dist_device_sync", "dist_sync"):
        assert f"a '{kind}' store needs a job" in done.stdout and done.stdout.count(f"({every} not set). {typed}") == 2, done.stdout
    assert "(DMLC_PS_ROOT_PORT not set)" in done.stderr and "Check notnull" not in done.stderr, done.stderr
