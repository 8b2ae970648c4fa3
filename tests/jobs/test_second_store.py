"""A script wraps its store, and then gives the string to what trains: MXNet would make a second store, and wait for ever in that call."""

import pytest

from support.cluster import run_cluster

JOB = """
import gc, sys
import mxnet as mx
from prophet_mx import KVStoreError, ScheduledKVStore

policy, wrapped = sys.argv[1:]
kv = mx.kv.create("dist_sync")
if wrapped == "wrapped":
    kv = ScheduledKVStore(kv, policy=policy)
net = mx.gluon.nn.Dense(3, in_units=4)
net.initialize()

def refused(make):
    try:
        make()
    except KVStoreError as error:
        assert isinstance(error, mx.MXNetError), error
        print(error, flush=True)
        return
    raise SystemExit("a second store was made")

def train(store):
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", kvstore=store)
    with mx.autograd.record():
        loss = net(mx.nd.ones((2, 4))).sum()
    loss.backward()
    trainer.step(2)
    mx.nd.waitall()

train(kv)
refused(lambda: train("dist_sync"))
data = mx.io.NDArrayIter(mx.nd.ones((8, 4)), mx.nd.ones((8,)), 4, label_name="label")
dense = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1)
model = mx.mod.Module(mx.sym.LinearRegressionOutput(dense, mx.sym.var("label")), label_names=["label"])
refused(lambda: model.fit(data, num_epoch=1, kvstore="dist_device_sync"))
for kind in ("local", "device", "local"):
    store = mx.kv.create(kind)
    ScheduledKVStore(store).init(1, mx.nd.ones((2,)))
train("device")
kv.close() if hasattr(kv, "close") else None
refused(lambda: mx.kv.create("dist_async"))
print("done", flush=True)
"""


@pytest.mark.parametrize(
    "policy, wrapped, schedule", [("prophet", "wrapped", False), ("off", "wrapped", False), ("prophet", "plain", True)]
)
def test_a_second_dist_store_is_an_error_that_says_what_to_pass(policy, wrapped, schedule):
    """Also if the first one was closed, schedules nothing, or was wrapped by ``--schedule``."""
    script = "from prophet_mx.mxnet.automatic import install; install()\n" + JOB if schedule else JOB
    result = run_cluster(script, 1, 1, args=[policy, wrapped], timeout=30)
    output = result.workers[0].output
    assert output.count("Pass the store that was wrapped, not a string: kvstore=kv") == 3 and "\ndone" in output, result.logs()
