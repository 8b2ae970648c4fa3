"""Which server MXNet puts a key on, and which keys it cannot place."""

import ctypes
import math

from hypothesis import given
from hypothesis import strategies as st

from prophet_mx.mxnet.keys import MAX_KEY, WIDE, KeyBook, Shape
from prophet_mx.planning.placement import SURE

SMALL = 1000
SMALL_SHAPE = Shape((3,), float, 3, 12)
NUMBERS = st.integers(0, 10**6) | st.integers(0, MAX_KEY)


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


def test_int_keys_of_a_worker_do_not_meet_its_service_keys():
    book = KeyBook(2, SMALL)
    book.add(2 * 10**9, SMALL_SHAPE)
    assert not set(book.new_keys(3)) & {2 * 10**9} and book.is_own(2 * 10**9)


def test_slices_are_on_the_server_that_has_fewer_messages_of_whole_gradients():
    """Whole ones of even numbers are all on the first of two servers. Each takes it the time in which the link carries 1000 bytes."""
    book = KeyBook(2, SMALL)
    for number in (0, 2, 4, 6):
        book.add(number, SMALL_SHAPE)
    names, _ = book.slice_keys([100] * 6, [0, 2, 4, 6], 1000)
    assert [book.server_of(name, 25) for name in names] == [1, 1, 1, 1, 0, 1]
    names, _ = book.slice_keys([100] * 6, [0, 2, 4, 6])
    assert sorted(book.server_of(name, 25) for name in names) == [0, 0, 0, 1, 1, 1]
