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
from prophet_mx.mxnet.order_exchange import decoded_orders, encoded_orders
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
