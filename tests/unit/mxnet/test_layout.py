"""Which gradients are cut, where the slices are, and where units have their places in the orders."""

import numpy as np
import pytest

from prophet_mx.mxnet.keys import KeyBook, Shape
from prophet_mx.mxnet.layout import Layout, slices_of
from prophet_mx.sizes import MAX_UNIT


def test_each_slice_of_half_precision_is_on_one_of_two_servers():
    """6 MB of fp16 in units of 4 MB, which have 2 million elements."""
    book = KeyBook(2, 1000 * 1000)
    book.add("w", Shape((3_000_000,), np.float16, 3_000_000, 6_000_000))
    slices = slices_of(book, MAX_UNIT)[0]["w"]
    names, made = book.slice_keys([2 * (part.stop - part.start) for part in slices], [])
    for name in made:
        book.made(name)
    assert {book.server_of(name, part.stop - part.start) for name, part in zip(names, slices)} == {0, 1}


@pytest.mark.parametrize("servers, sliced", [(1, True), (2, False)])
def test_no_more_slices_are_made_than_mxnet_can_place(servers, sliced):
    """Text keys are numbered as they come, and with several servers MXNet's placement overflows at 215,330."""
    book = KeyBook(servers, 1000 * 1000)
    book.add("w", Shape((900_000,), np.float32, 900_000, 3_600_000))
    assert bool(slices_of(book, 8)[0]) == sliced


def test_late_keys_have_places_of_their_own_that_do_not_depend_on_first_use():
    layouts = []
    for order in ([7, 2, "late", "w"], ["w", "late", 2, 7]):
        layout = Layout(book := KeyBook(1, 10**6))
        for key in order:
            book.gradient(key)
        layouts.append([layout.order_of(key, 0)[1] for key in (2, 7, "w", "late")])
    assert layouts[0] == layouts[1] and len(set(layouts[0])) == 4 and np.diff(layouts[0][:2]) > 0
