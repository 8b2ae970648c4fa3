"""The messages in which rank 0 tells the others its orders."""

from types import SimpleNamespace
from unittest import mock

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_mx.mxnet import order_exchange
from prophet_mx.mxnet.api import bind
from prophet_mx.mxnet.order_exchange import REPORTS, ROUND, OrderSource, decoded_orders, encoded_orders
from prophet_mx.planning.orders import Orders


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.permutations(range(n)), st.permutations(range(n)))))
def test_what_rank_0_sends_arrives_however_many_send_nothing(places):
    orders = Orders(*places)
    units = len(orders.urgencies)
    assert decoded_orders(encoded_orders(orders, units) + 3 * encoded_orders(None, units)) == orders
    assert decoded_orders(encoded_orders(None, units)) is None
    assert encoded_orders(orders, units).dtype == np.float32


@pytest.mark.parametrize("part", ["encoded_orders", "decoded_orders", "mx.nd.array", "_core.Arrival"])
def test_an_exchange_that_fails_sends_as_many_messages_as_one_that_does_not(monkeypatch, part):
    """A worker with one message less than the others, or with one more, would spoil every later sum."""

    def messages():
        sent, failures = [], 0
        plain = SimpleNamespace(pushpull=lambda key, value, out: sent.append((push, value.asnumpy())))
        exchange = order_exchange.OrderExchange(plain, 0, 2, 3)
        for push in range(1, 120):
            if push == fails:
                monkeypatch.setattr(f"prophet_mx.mxnet.order_exchange.{part}", mock.Mock(side_effect=MemoryError))
            try:
                exchange.clock_pushed(lambda: Orders([1, 0], [0, 1]), lambda orders: None, lambda: None)
            except MemoryError:
                failures += 1
            mx.nd.waitall()
        return sent, failures

    bind()
    fails = 0
    healthy, _ = messages()
    fails = 54
    failed, failures = messages()
    assert [push for push, _ in healthy] == [push for push, _ in failed] == [3, 5, 7, 11, 53, 55, 57, 61, 103, 105, 107, 111]
    assert failures == 1 and all(not message.any() for push, message in failed if push > 55)


@pytest.mark.parametrize("late, settles", [(0, REPORTS[0]), (REPORTS[0], REPORTS[1]), (REPORTS[-1], ROUND + REPORTS[0])])
def test_the_lead_limit_counts_again_when_all_workers_have_reported_the_new_orders(late, settles):
    """The other worker has them so many pushes after they were sent, and reports 1 until then. An answer is read at the next push."""
    bind()
    first, events = 3, []

    def pushpull(key, value, out):
        reports = (push - first) % ROUND != 0
        out[0] += reports and push - first <= late

    exchange = order_exchange.OrderExchange(SimpleNamespace(pushpull=pushpull), 0, 2, first)
    new = iter([Orders([1, 0], [0, 1])])
    for push in range(1, 2 * ROUND):
        exchange.clock_pushed(
            lambda: next(new, None), lambda orders: events.append(("use", push - first)), lambda: events.append(("settled", push - first))
        )
        mx.nd.waitall()
    assert events == [("use", 1), ("settled", settles + 1)]


def test_orders_are_made_for_the_rate_since_the_last_ones_but_for_none_above_the_measured_one(monkeypatch):
    """A worker that has a shared link to itself for a while is faster than it is when all send."""
    rates = []

    def orders(sizes, ready, steps, rate):
        rates.append(rate)
        return Orders([0, 1], [0, 1])

    monkeypatch.setattr(order_exchange, "orders", orders)
    learner = SimpleNamespace(ready_times=lambda: {0: 0.1, 1: 0.0}, steps=lambda: [[1], [0]])
    moments = iter([(0, 0.0), (400, 2.0), (9400, 3.0), (9700, 4.0), (18_700, 5.0)])  # bytes that have drained, and seconds of sending

    def snapshot():
        drained, seconds = next(moments)
        return {"links": [{"drained": drained, "rate": 300.0}, {"drained": 0, "rate": 200.0}], "sending_seconds": seconds}

    source = OrderSource(SimpleNamespace(snapshot=snapshot), learner)
    for most in (1000.0, 1000.0, 1000.0, 1000.0, 0.0):  # 0: it was not measured
        source.most = most
        source.new([((0,), 8), ((1,), 8)])
    assert rates == [500, 200, 1000, 300, 9000]


def test_nothing_is_sent_before_the_first_profile_can_stand():
    """However many iterations of warm-up a job has. The workers count pushes alike."""
    bind()
    counts = [0]  # messages after each push
    plain = SimpleNamespace(pushpull=lambda key, value, out: counts.append(counts.pop() + 1))
    exchange = order_exchange.OrderExchange(plain, 0, 2, 160)
    for _ in range(1, 170):
        counts.append(counts[-1])
        exchange.clock_pushed(lambda: None, lambda orders: None, lambda: None)
    mx.nd.waitall()
    assert [push for push in range(1, 170) if counts[push] > counts[push - 1]] == [160, 162, 164, 168]
