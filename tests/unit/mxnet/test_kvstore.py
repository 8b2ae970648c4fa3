"""Stores that are wrapped without a job."""

from types import SimpleNamespace

import mxnet as mx
import pytest

from prophet_mx import ConfigError, KVStoreError, ScheduledKVStore
from prophet_mx.monitoring.stats import stats
from prophet_mx.mxnet import store


def test_a_local_store_passes_through_and_says_so_once(caplog):
    plain, out = mx.kv.create("local"), mx.nd.zeros((4,))
    kv = ScheduledKVStore(plain)
    kv.set_optimizer(mx.optimizer.create("test"))  # adds gradients to weights
    kv.init("a", mx.nd.ones((4,)))
    for _ in range(3):
        kv.push("a", [mx.nd.ones((4,)), mx.nd.ones((4,))])
    kv.pull("a", out=out)
    assert kv.type == "local" and (out == 1 + 3 * 2).asnumpy().all() and kv.stats() == stats({})
    assert [record.getMessage() for record in caplog.records if record.name == "prophet_mx"] == [
        "gradient traffic is not scheduled: the store is 'local', not dist_sync"
    ]


@pytest.mark.parametrize(
    "setting, value, words",
    [
        ("compress", "bf16", "compress='bf16' is not allowed for MXNet, whose servers do not know bf16; allowed: 'off', or fp16"),
        ("clipping", "wait", "clipping='wait' is not allowed, as it has no effect with MXNet; allowed: 'overlap'"),
        ("fallback", "off", "fallback='off' is not allowed, as it has no effect with MXNet; allowed: 'auto'"),
    ],
)
def test_a_setting_of_pytorch_alone_is_refused(setting, value, words):
    with pytest.raises(ConfigError) as caught:
        ScheduledKVStore(mx.kv.create("local"), **{setting: value})
    assert words in str(caught.value)


def test_a_store_that_could_not_agree_never_sends_a_gradient(monkeypatch):
    """Even if this worker's own settings schedule nothing: no other worker would answer."""

    def refused(*_):
        raise KVStoreError("unlike rank 0")

    monkeypatch.setattr(store, "is_synchronous", lambda plain: True)
    monkeypatch.setattr(store, "negotiate", refused)
    kv, out = ScheduledKVStore(mx.kv.create("local"), policy="off"), mx.nd.zeros((4,))
    kv.init("a", mx.nd.ones((4,)))
    for send in (kv.push, kv.push, kv.pushpull):
        with pytest.raises(KVStoreError, match="unlike rank 0"):
            send("a", mx.nd.ones((4,)) * 5)
    kv.pull("a", out=out)
    assert (out == 1).asnumpy().all()


@pytest.mark.parametrize("trained, places", [((1, 2, 3), [3, 2, 0, 1]), ((), [0, 1, 2, 3]), ((0, 1), [0, 1, 2, 3])])
def test_a_saved_profile_orders_parameters_also_beside_running_statistics(trained, places):
    """Key 0 is in no profile. Without that order, the names count."""
    found = SimpleNamespace(
        _keys=SimpleNamespace(shapes=dict.fromkeys(range(4)), texts=False),
        _path=SimpleNamespace(saved_order=lambda: {"2": 0, "3": 1, "1": 2}),
        _trained=set(trained),
        _names={key: f"layer{key}_weight" for key in range(4)},
    )
    assert store.WrappedStore._places(found) == places
