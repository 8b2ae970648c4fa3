"""Gradients in 16 bits: the weights are, bit for bit, those of a reference, however they are cut, grouped and called; where 16 bits cannot
be had, all workers send 32, or an error says why."""

import re

import pytest

from support.cluster import run_cluster
from support.paths import SCRIPTS

JOB = SCRIPTS / "halves.py"
SLOW = {"PROPHET_BANDWIDTH": "1Gbit"}  # loopback may be so fast that 16 bits do not pay
ELEMENTWISE = "sgd,sgd,nag,signum,ftml,dcasgd,adam,adagrad,rmsprop,adadelta,ftrl,adamax,test"


def exact(*arguments, workers=2, servers=1, **variables):
    """The units and the saturated numbers of each worker, and the log."""
    job = run_cluster(JOB, workers, servers, args=arguments, env={**SLOW, **variables}, timeout=100)
    found = re.findall(r"exact (\d+) (\d+) ''", job.logs())
    assert len(found) == workers, job.logs()
    return [tuple(map(int, numbers)) for numbers in found], job.logs()


def test_updates_on_servers():
    """Sliced, grouped and whole; each optimizer goes on with the weights that the one before left."""
    found, logs = exact(ELEMENTWISE, servers=2, PROPHET_UNIT="1KB", PROPHET_LOG_LEVEL="info")
    assert logs.count("compress=fp16: ") == 1 and all(saturated for _, saturated in found), logs


def test_servers_that_have_no_prophet_mx():
    exact("sgd,adam", "bare", PROPHET_UNIT="1KB")


@pytest.mark.parametrize("variables", [{"PROPHET_UNIT": "4KB"}, {"PROPHET_UNIT": "400", "PROPHET_GROUPS": "off"}], ids=str)
def test_sums(variables):
    exact("none", **variables)


LARGE = """
    import mxnet as mx
    from prophet_mx import ScheduledKVStore

    store = ScheduledKVStore(mx.kv.create("dist_sync"), compress="fp16", unit="4KB")
    store.init(1, mx.nd.zeros((40, 40)))
    total = 0
    for iteration in range(60):
        found = mx.nd.zeros((40, 40))
        store.pushpull(1, mx.nd.full((40, 40), 0 if iteration else 1e6), out=found)
        assert found.asnumpy().max() <= 65504, found
        total += float(found.asnumpy().min())
    assert total == 3e6, total
    assert store.stats()["saturated"] == 45 * 1600, store.stats()
"""


def test_sums_that_16_bits_cannot_hold_arrive_bit_by_bit():
    run_cluster(LARGE, workers=3, env=SLOW, timeout=60)


REFUSED = """
    import mxnet as mx
    import numpy as np
    from prophet_mx import ScheduledKVStore

    store = ScheduledKVStore(mx.kv.create("dist_sync"), compress="fp16", unit="4KB")
    weight = mx.nd.ones((40, 40))
    {before}
    store.init(1, weight)
    store.pushpull(1, mx.nd.ones((40, 40)) * 3.0001, out=weight)
    assert (weight.asnumpy() == {expected}).all(), weight
    {after}
    print("done", flush=True)
"""
SIX, HALF = "np.float32(3.0001) * 2", "np.float32(np.float16(3.0001)) * 2"
WITHOUT = {
    "another type": ("store.init(2, mx.nd.ones((9, 9), dtype='float16'))", "key 2 is float16, and servers add up numbers of 16 bits", SLOW),
    "a fast network": ("", "at 10 Gbit/s from each worker to each server", {"PROPHET_BANDWIDTH": "10Gbit"}),
}
AFTERWARDS = {
    "an optimizer": ("store.set_optimizer(mx.optimizer.SGD())", "set the optimizer before the first push"),
    "another type": ("store.init(2, mx.nd.ones((9, 9), dtype='float64'))", "a key of float64 cannot be added while gradients travel"),
    "two bits": ("store.set_gradient_compression({'type': '2bit'})", "cannot be set after the first push, as gradients travel in 16 bits"),
}


@pytest.mark.parametrize("case", WITHOUT)
def test_without_16_bits_all_workers_send_32_and_the_log_says_why(case):
    before, why, env = WITHOUT[case]
    logs = run_cluster(REFUSED.format(before=before, expected=SIX, after=""), env=env, timeout=60).logs()
    assert logs.count("compress=fp16 has no effect: ") == 1 and why in logs and logs.count("done") == 2, logs


def test_afterwards_what_would_be_wrong_is_refused():
    refused = "\n    ".join(
        f"try:\n        {what}\n        raise SystemExit({what!r})\n    except Exception as error:\n        assert {why!r} in str(error)"
        for what, why in AFTERWARDS.values()
    )
    logs = run_cluster(REFUSED.format(before="", expected=HALF, after=refused), env=SLOW, timeout=60).logs()
    assert logs.count("done") == 2, logs


def test_rank_0s_setting_is_that_of_all():
    job = run_cluster(
        REFUSED.format(before="", expected=SIX, after="").replace(', compress="fp16"', ""),
        role_env={"worker 1": {"PROPHET_COMPRESS": "fp16"}},
        timeout=60,
    )
    assert "all workers use rank 0's settings: compress=" in job.logs(), job.logs()
