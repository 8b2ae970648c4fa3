"""What workers measure together at the first push: what a message costs, and that sizes follow from it."""

import re

import pytest

from support.cluster import run_cluster

JOB = """
import mxnet as mx
from prophet_mx import ScheduledKVStore

kv = ScheduledKVStore(mx.kv.create("dist_sync"))
kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.5, momentum=0.9))
keys = [f"k{i}" for i in range(6)]
values = [mx.nd.ones((20000 * (1 + i),)) for i in range(6)]
kv.broadcast(keys, values, out=values)
for _ in range(3):
    kv.pushpull(keys, [mx.nd.ones(value.shape) for value in values], out=values)
mx.nd.waitall()
stats = kv.stats()
late = mx.nd.ones((5,))
kv.broadcast("late", late, out=late)    # a key that is numbered after those of the measurement
kv.pushpull("late", mx.nd.ones((5,)), out=late)
print("result", stats["message_seconds"], stats["unit_bytes"], *{float(x) for value in values for x in value.asnumpy()}, late.asnumpy()[0])
"""
# 1 - 0.5 * 2 * (1 + 1.9 + 2.71): momentum SGD on the sum of two workers' ones.
WEIGHT, LATE = -4.61, 0.0
LARGEST = 480_000  # bytes


@pytest.mark.parametrize("cost", ["auto", "40ms"])
def test_a_message_s_cost_is_measured_with_the_servers_optimizer_and_changes_no_weight(cost):
    job = run_cluster(JOB, 2, 2, env={"PROPHET_MESSAGE_COST": cost}, timeout=60)
    results = {re.search("^result (.*)$", worker.output, re.MULTILINE).group(1) for worker in job.workers}
    assert len(results) == 1, job.logs()
    message, unit, weight, late = map(float, results.pop().split())
    assert (weight, late) == (pytest.approx(WEIGHT, rel=1e-6), LATE), job.logs()
    if cost == "auto":
        assert 1e-6 < message < 0.03 and unit >= 4000
    else:
        assert message == pytest.approx(0.04) and 1.5 * unit >= LARGEST  # all are whole
