"""Workers that train come to share the total order that the profile gives, without waiting for each other."""
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster import run_cluster
from prophet_mx.orders import Orders, decoded, encoded

JOB = """
import logging, sys, time
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
import mxnet as mx
from prophet_mx import ScheduledKVStore

kv = ScheduledKVStore(mx.kv.create("dist_sync"), unit=4000)
names = [f"w{i}" for i in range(6)] if "strings" in sys.argv else list(range(6))
if "updates" in sys.argv and kv.rank == 0:
    kv.set_optimizer(mx.optimizer.create("test", rescale_grad=1.0))     # weight += gradient
weights = [mx.nd.zeros((5000 + i,)) for i in range(6)]
for name, weight in zip(names, weights):
    kv.init(name, weight)
for iteration in range(24):
    for i in reversed(range(6)):
        if kv.rank == 1:
            time.sleep(0.002)                   # one worker is slower
        kv.pushpull(names[i], mx.nd.ones((5000 + i,)), out=weights[i], priority=-i)
    for weight in weights:
        weight.wait_to_read()
total = 2 * 24 if "updates" in sys.argv else 2
assert all((weight == total).asnumpy().all() for weight in weights), [weight[0].asscalar() for weight in weights]
(link,) = kv._path.driver.snapshot()["links"]
print("limited again:", link["lead"] < 2**40)
"""

AHEAD = """
import sys
import mxnet as mx
from prophet_mx import ScheduledKVStore

kv = ScheduledKVStore(mx.kv.create("dist_sync"), unit=400, lead=1)
for key in (0, 1):
    kv.init(key, mx.nd.zeros((500,)))
out = [mx.nd.zeros((500,)), mx.nd.zeros((500,))]
def push(key, times):
    for _ in range(times):
        kv.pushpull(key, mx.nd.ones((500,)), out=out[key])
for turn in range(5):                           # one worker is many pushes of one key ahead of the other, which waits for the other key
    if kv.rank == 0:
        push(1, 8)
        push(0, 1)
    else:
        push(0, 1)
        out[0].wait_to_read()
        push(1, 8)
    mx.nd.waitall()
    assert all((value == 2).asnumpy().all() for value in out)
print("nobody waited")
"""


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.permutations(range(n)), st.permutations(range(n)))))
def test_what_rank_0_sends_arrives_however_many_send_nothing(places):
    orders = Orders(*places)
    units = len(orders.ranks)
    assert decoded(encoded(orders, units) + 3 * encoded(None, units)) == orders
    assert decoded(encoded(None, units)) is None
    assert encoded(orders, units).dtype == np.float32


@pytest.mark.cluster
@pytest.mark.parametrize("kind", [["strings"], ["updates"]], ids="".join)
def test_all_workers_take_the_orders_and_the_lead_limit_counts_again(kind):
    for worker in run_cluster(JOB, 2, 1, args=kind).workers:
        assert "the order of 35 units follows the profile now" in worker.output, worker.output
        assert "limited again: True" in worker.output


@pytest.mark.cluster
def test_a_worker_that_is_ahead_does_not_wait_for_the_exchange():
    assert all("nobody waited" in worker.output for worker in run_cluster(AHEAD, 2, 1, timeout=60).workers)
