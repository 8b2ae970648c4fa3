"""Stores that are wrapped without a job."""

import mxnet as mx

from prophet_mx import ScheduledKVStore


def test_a_local_store_passes_through_and_says_so_once(caplog):
    plain, out = mx.kv.create("local"), mx.nd.zeros((4,))
    kv = ScheduledKVStore(plain)
    kv.set_optimizer(mx.optimizer.create("test"))  # adds gradients to weights
    kv.init("a", mx.nd.ones((4,)))
    for _ in range(3):
        kv.push("a", [mx.nd.ones((4,)), mx.nd.ones((4,))])
    kv.pull("a", out=out)
    assert kv.type == "local" and (out == 1 + 3 * 2).asnumpy().all() and kv.stats() == {"policy": "off"}
    assert [record.getMessage() for record in caplog.records if record.name == "prophet_mx"] == [
        "gradient traffic is not scheduled: the store is 'local', not dist_sync"
    ]
