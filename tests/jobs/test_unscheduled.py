"""What is not scheduled: other versions of MXNet, stores that are not dist_sync's, MXNet's own P3. It behaves as without the wrapper."""

import json
import re

from prophet_mx.metrics import Stats
from support.cluster import run_cluster

REASON = "gradient traffic is not scheduled: "


def said(worker):
    """The reasons in a worker's log."""
    return [line.partition(REASON)[2] for line in worker.output.splitlines() if REASON in line]


OTHER_VERSION = """
import mxnet as mx
from prophet_mx import ScheduledKVStore, UnsupportedMXNetError

mx.__version__ = "1.8.0"                # what prophet_mx sees of an MXNet of that version
plain = mx.kv.create("dist_sync")
try:
    ScheduledKVStore(plain)
except UnsupportedMXNetError as error:
    print("refused:", error)
plain.init(0, mx.nd.zeros((9,)))        # it is still whole
out = mx.nd.zeros((9,))
kv = ScheduledKVStore(plain, policy="off")
kv.init(1, mx.nd.zeros((9,)))
for key in (0, 1):
    kv.pushpull(key, mx.nd.full((9,), key + 5), out=out)
    assert (out == key + 5).asnumpy().all(), out
print("policy", kv.stats()["policy"])
"""


def test_another_mxnet_is_refused_and_trains_unscheduled_with_the_policy_off():
    [worker] = run_cluster(OTHER_VERSION, 1, 1).workers
    assert "refused: MXNet 1.8.0 is installed, but prophet_mx supports only the engine layout of MXNet 1.9.x" in worker.output
    assert "PROPHET_POLICY=off" in worker.output and "policy off" in worker.output


OFF = """
import json
import mxnet as mx
from prophet_mx import ScheduledKVStore

kv = ScheduledKVStore(mx.kv.create("dist_sync"))
keys, out = list("abc"), [mx.nd.zeros((9,)) for _ in range(3)]
kv.init(keys, out)
for step in range(12):
    if step % 2:
        kv.pushpull(keys, out, out=out)
    else:
        for key, value in zip(keys, out):
            kv.push(key, value)
            kv.pull(key, value)
mx.nd.waitall()
print("statistics", json.dumps(kv.stats()))
"""


def test_with_the_policy_off_iterations_are_timed():
    for worker in run_cluster(OFF, 2, 1, env={"PROPHET_POLICY": "off", "PROPHET_LOG_EVERY": "5"}).workers:
        lines = re.findall(r"prophet_mx INFO: iterations (\d+) to (\d+): [\d.]+ ms each, not scheduled", worker.output)
        assert lines == [("1", "6"), ("6", "11")], worker.output
        shown = json.loads(re.search("statistics (.*)", worker.output).group(1))
        assert shown["policy"] == "off" and not any(value for key, value in shown.items() if key not in ("policy", "drain"))
        assert shown.keys() == Stats.__annotations__.keys() and said(worker) == ["the policy is off"]


# Updates of whole numbers add up to the same in any order.
ASYNC = """
import mxnet as mx
from prophet_mx import ScheduledKVStore

kv = ScheduledKVStore(mx.kv.create("dist_async"))
kv.set_optimizer(mx.optimizer.create("sgd", learning_rate=1.0))
shapes = {"a": (3,), "b": (200, 300)}
for key, shape in shapes.items():
    kv.init(key, mx.nd.zeros(shape))
kv._barrier()
outs = {key: mx.nd.zeros(shape) for key, shape in shapes.items()}
for step in range(20):
    for key, shape in shapes.items():
        kv.push(key, mx.nd.full(shape, step * (kv.rank + 1)))
        kv.pull(key, out=outs[key])
mx.nd.waitall()
kv._barrier()
for key, out in outs.items():
    kv.pull(key, out=out)
    assert (out == -3 * 190).asnumpy().all(), (key, out)
print("type", kv.type, kv.stats()["policy"])
"""


def test_an_asynchronous_store_passes_through():
    for worker in run_cluster(ASYNC, 2, 1).workers:
        assert "type dist_async off" in worker.output
        assert said(worker) == ["the store is 'dist_async', where updates do not wait for one another"], worker.output


# Without an optimizer on the servers, which MXNet's P3 does not have.
P3 = """
import mxnet as mx
from prophet_mx import ScheduledKVStore

kv = ScheduledKVStore(mx.kv.create("dist_sync"))
shapes = {"a": (3,), "b": (200, 300)}               # of the latter P3 makes two slices
outs = {key: mx.nd.zeros(shape) for key, shape in shapes.items()}
for key, out in outs.items():
    kv.init(key, out)
for step in range(20):
    for i, (key, out) in reversed(list(enumerate(outs.items()))):
        kv.pushpull(key, mx.nd.full(out.shape, (step + i) * (kv.rank + 1)), out=out, priority=-i)
    for i, out in enumerate(outs.values()):
        assert (out == 3 * (step + i)).asnumpy().all(), (step, out)
print("type", kv.type, kv.stats()["policy"])
"""


def test_mxnets_own_p3_passes_through():
    for worker in run_cluster(P3, 2, 1, env={"DMLC_PS_VAN_TYPE": "p3"}).workers:
        assert "type dist_sync off" in worker.output
        assert said(worker) == ["DMLC_PS_VAN_TYPE=p3 selects MXNet's own scheduling"], worker.output
