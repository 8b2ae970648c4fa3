"""Workers that train come to share the total order that the profile gives, without waiting for each other."""

import pytest

from support.cluster import run_cluster

JOB = """
import logging, sys, time
from unittest import mock
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
import mxnet as mx
from prophet_mx import ScheduledKVStore
from prophet_mx.mxnet import order_exchange

kv = ScheduledKVStore(mx.kv.create("dist_sync"), unit=4000)
names = [f"w{i}" for i in range(6)] if "strings" in sys.argv else list(range(6))
if "updates" in sys.argv and kv.rank == 0:
    kv.set_optimizer(mx.optimizer.create("test", rescale_grad=1.0))     # weight += gradient
weights = [mx.nd.zeros((5000 + i,)) for i in range(6)]
for name, weight in zip(names, weights):
    kv.init(name, weight)
for iteration in range(24):
    if "fails" in sys.argv and kv.rank == 1 and iteration == 5:
        order_exchange.encoded_orders = mock.Mock(side_effect=mx.base.MXNetError)      # before its first message
    for i in reversed(range(6)):
        if kv.rank == 1:
            time.sleep(0.002)                   # one worker is slower
        kv.pushpull(names[i], mx.nd.ones((5000 + i,)), out=weights[i], priority=-i)
    for weight in weights:
        weight.wait_to_read()
total = kv.num_workers * (24 if "updates" in sys.argv else 1)
assert all((weight == total).asnumpy().all() for weight in weights), [weight[0].asscalar() for weight in weights]
links = kv._path.driver.snapshot()["links"]
print("limited again:", all(link["lead"] < 2**40 for link in links), "failure:", kv.stats()["failure"] or "none")
mx.nd.waitall()
"""

TURNED = """
import logging, sys, time
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
import mxnet as mx
from prophet_mx import ScheduledKVStore
from prophet_mx.mxnet import order_exchange
from prophet_mx.profiling import online

order_exchange.ROUND = 12                       # rounds at pushes 8, 20, 32, 44
online.FOLLOW = 1.0                             # a profile is that of the last iteration looked at
kv = ScheduledKVStore(mx.kv.create("dist_sync"), unit=4000)
weights = [mx.nd.zeros((5000,)) for i in range(6)]
for key, weight in enumerate(weights):
    kv.init(key, weight)
def train(iterations, keys):
    for _ in range(iterations):
        for key in keys:
            kv.pushpull(key, mx.nd.ones((5000,)), out=weights[key], priority=-key)
            time.sleep(0.005)
        for weight in weights:
            weight.wait_to_read()
    places = [kv._path.layout.order_of(key, 0)[1] for key in range(6)]
    (link,) = kv._path.driver.snapshot()["links"]
    print("limited:", link["lead"] < 2**40, "places:", places)
    return places
before = train(19, [5, 4, 3, 2, 1, 0])
after = train(31, [0, 1, 2, 3, 4, 5])
assert before == sorted(before, reverse=True) and after == sorted(after), (before, after)
assert all((weight == 2).asnumpy().all() for weight in weights)
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


@pytest.mark.parametrize("workers,servers,kind", [(2, 1, "updates"), (4, 2, "strings")])
def test_all_workers_take_the_orders_and_the_lead_limit_counts_again(workers, servers, kind):
    for worker in run_cluster(JOB, workers, servers, args=[kind]).workers:
        assert "the order of 35 units now follows the profile" in worker.output, worker.output
        assert "limited again: True failure: none" in worker.output, worker.output


def test_where_the_exchange_fails_training_goes_on_and_the_others_still_share_orders():
    outputs = sorted((worker.output for worker in run_cluster(JOB, 2, 1, args=["fails"]).workers), key=lambda text: "Traceback" in text)
    assert "the order of 35 units now follows the profile" in outputs[0], outputs
    assert "limited again: True failure: none" in outputs[0], outputs
    assert outputs[1].count("scheduling has ended, training continues") == 1, outputs
    assert "failure: the exchange of orders: MXNetError" in outputs[1], outputs


def test_when_the_profile_changes_all_workers_take_the_new_orders():
    job = run_cluster(TURNED, 2, 1)
    shown = [[line for line in worker.output.splitlines() if line.startswith("limited: True places")] for worker in job.workers]
    assert len(shown[0]) == 2 and shown[0] == shown[1], job.logs()


def test_a_worker_that_is_ahead_does_not_wait_for_the_exchange():
    assert all("nobody waited" in worker.output for worker in run_cluster(AHEAD, 2, 1, timeout=60).workers)
