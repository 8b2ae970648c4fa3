"""Which server MXNet puts a key on, and keys so large that it cannot."""
import ctypes
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_mx.mxnet.keys import MAX_KEY, SURE, WIDE, KeyBook, Shape
from support.cluster import run_cluster

SMALL = 1000
SMALL_SHAPE = Shape((3,), float, 3, 12)
NUMBERS = st.integers(0, 10**6) | st.integers(0, MAX_KEY)

JOB = """
    import mxnet as mx
    from prophet_mx import KVStoreError, ScheduledKVStore

    kv = ScheduledKVStore(mx.kv.create("dist_sync"), unit=4000)

    def refused(key):
        one = mx.nd.ones((3,))
        try:
            kv.init(key, [one] * len(key) if isinstance(key, list) else one)
        except KVStoreError as error:
            return isinstance(error, mx.MXNetError), str(error)
        raise AssertionError(f"{key} was accepted")

    print("refused", refused(215331), refused([7, 215333]))
    kv.init(8, mx.nd.ones((3, 2)).tostype("row_sparse"))
    keys = [3, 215330, 430661, 646000]      # two of them on the first server by luck, one where the product overflows twice
    values = [mx.nd.zeros((3000,)) for _ in keys]
    kv.init(keys, values)
    kv.init(646001, mx.nd.zeros((2_000_000,)))  # spread over the servers: nothing is multiplied
    for step in range(3):
        for key, value in zip(keys, values):
            kv.pushpull(key, mx.nd.ones((3000,)) * (1 + kv.rank + step), out=value)
        mx.nd.waitall()
        assert all((value == 3 + 2 * step).asnumpy().all() for value in values), [value[0].asscalar() for value in values]
    own = [key for key in kv._keys._numbers if kv._keys.is_own(key)]
    assert len(own) > 8, own
    print("taken", refused(own[1])[1])
    kv.init(5, mx.nd.ones((3,)))
    print("units", kv.stats()["units"])
"""


def as_in_mxnet(number, servers):
    """The remainder of kvstore_dist.h, in C's arithmetic."""
    return int(math.fmod(ctypes.c_int32(number * 9973).value, servers))


@given(NUMBERS, st.integers(2, 50))
def test_a_key_is_on_the_server_where_mxnet_puts_it_or_said_to_have_none(number, servers):
    book = KeyBook(servers, SMALL)
    expected = as_in_mxnet(number, servers)
    assert (book.unplaceable(number, 0, 3) is not None) == (expected < 0)
    assert book.unplaceable(number, 0, SMALL) is None and KeyBook(1, SMALL).unplaceable(number, 0, 3) is None
    assert book.server_of(number, SMALL) == WIDE
    if expected >= 0:
        assert book.server_of(number, 3) == expected
    if number <= SURE:
        assert expected >= 0


@given(st.lists(NUMBERS, min_size=1, max_size=5), st.integers(1, 300))
def test_own_keys_are_new_and_can_be_placed_wherever_the_caller_s_are(numbers, count):
    book = KeyBook(3, SMALL)
    for number in numbers:
        book.add(number, SMALL_SHAPE)
    own = book.new_keys(count)
    assert len(set(own)) == count and not set(own) & set(numbers) and max(own) <= MAX_KEY
    assert [key for key in own if as_in_mxnet(key, 3) < 0] == []
    assert count < 30 or len({book.server_of(key, 3) for key in own}) == 3


@pytest.mark.cluster
def test_keys_above_the_bound_train_where_mxnet_can_place_them_and_are_refused_where_it_cannot():
    job = run_cluster(JOB, 2, 2, env={"PROPHET_BANDWIDTH": "1Gbit"}, timeout=60)
    for worker in job.workers:
        assert worker.output.count("(True, ") == 2 and "MXNet cannot place number 215333 on 2 servers" in worker.output, job.logs()
        assert "is taken: prophet_mx made it" in worker.output and "units 36" in worker.output, job.logs()
