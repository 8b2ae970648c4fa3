"""A worker that makes no dist store says so."""

import pytest

from support.cluster import run_cluster

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
