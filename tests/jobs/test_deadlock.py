"""Workers whose gradients become ready in different orders never lock each other, however small the limits."""

import pytest

from support.cluster import run_cluster
from support.paths import SCRIPTS

JOB = SCRIPTS / "opposite_orders.py"
ITERATIONS = 200


@pytest.mark.parametrize(
    "workers, servers, policy, groups",
    [(2, 2, "priority", "auto"), (2, 1, "fifo", "auto"), (3, 2, "prophet", "off"), (3, 2, "prophet", "auto")],
)
def test_opposite_and_random_orders_with_the_smallest_limits(workers, servers, policy, groups):
    env = {
        "PROPHET_WINDOW": "1",
        "PROPHET_LEAD": "1",
        "PROPHET_POLICY": policy,
        "PROPHET_GROUPS": groups,
        "MXNET_KVSTORE_BIGARRAY_BOUND": "2000",
    }
    alone = "grouped" if policy == "prophet" and groups == "auto" else "alone"
    result = run_cluster(JOB, workers, servers, env=env, args=[ITERATIONS, alone], timeout=100)
    assert all("requests answered" in worker.output for worker in result.workers)


LOOKED_AT = """
import threading
import mxnet as mx
from prophet_mx import ScheduledKVStore

kv = ScheduledKVStore(mx.kv.create("dist_sync"))
outs = [mx.nd.zeros((50,)) for _ in range(20)]
for key, out in enumerate(outs):
    kv.init(key, out)
grads = [mx.nd.ones((50,)) for _ in outs]           # small: some gates run in the thread that pushes
mx.nd.waitall()
over = threading.Event()
def look():
    while not over.is_set():
        kv.stats()
threads = [threading.Thread(target=look) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(30):
    for key, out in enumerate(outs):
        kv.pushpull(key, grads[key], out=out)
    mx.nd.waitall()
over.set()
assert all((out == 2).asnumpy().all() for out in outs)
"""


def test_statistics_are_read_in_other_threads_while_gradients_are_pushed():
    run_cluster(LOOKED_AT, 2, 1, timeout=60)


WAITS = """
import time
import mxnet as mx
from prophet_mx import ScheduledKVStore

kv = ScheduledKVStore(mx.kv.create("dist_sync"))
keys = list(range(16))
outs = [mx.nd.zeros((2000,)) for _ in keys]
kv.init(keys, [mx.nd.zeros((2000,)) for _ in keys])
begin = time.time()
for iteration in range(12):
    waits = kv.rank == 1
    for key in reversed(keys) if waits else keys:  # whatever the timing, the other sends first what this one pushes last
        kv.pushpull(key, mx.nd.ones((2000,)) * (iteration + 1), out=outs[key], priority=-key)
        if waits:
            outs[key].wait_to_read()  # as a program does that prints a norm
    for out in outs:
        assert (out == 2 * (iteration + 1)).asnumpy().all()
    if iteration == 1:
        begin = time.time()  # what is measured at the first push, and what has to be learned, is over
print("yields", kv.stats()["yields"], "seconds per iteration", (time.time() - begin) / 10, flush=True)
"""


@pytest.mark.parametrize("policy", ["prophet", "credit"])
def test_a_worker_that_waits_for_each_value_before_it_pushes_the_next(policy):
    """Plain finishes, as each worker pushes whatever is ready. So the limit that keeps worker 0 from sending that must yield, and soon."""
    env = {
        "PROPHET_WINDOW": "1",
        "PROPHET_LEAD": "1",
        "PROPHET_POLICY": policy,
        "PROPHET_BANDWIDTH": "1Gbit",
        "PROPHET_MESSAGE_COST": "100us",
    }
    result = run_cluster(WAITS, 2, 1, env=env, timeout=40)
    lines = [line.split() for worker in result.workers for line in worker.output.splitlines() if line.startswith("yields")]
    assert max(int(line[1]) for line in lines) > 0, lines
    assert all(float(line[-1]) < 1 for line in lines), lines
