"""Which gradients the workers agree to slice, and where the slices are."""

from types import SimpleNamespace

import numpy as np
import pytest

from prophet_mx.mxnet.agreement import Agreeing
from prophet_mx.mxnet.keys import KeyBook, Shape
from prophet_mx.sizes import MAX_UNIT


def test_each_slice_of_half_precision_is_on_one_of_two_servers():
    """6 MB of fp16 in units of 4 MB, which have 2 million elements."""
    book = KeyBook(2, 1000 * 1000)
    book.add("w", Shape((3_000_000,), np.float16, 3_000_000, 6_000_000))
    slices = Agreeing(None, book, False).slices(MAX_UNIT)["w"]
    names = book.new_keys(len(slices))
    for name in names:
        book.made(name)
    assert {book.server_of(name, part.stop - part.start) for name, part in zip(names, slices)} == {0, 1}


@pytest.mark.parametrize("servers, sliced", [(1, True), (2, False)])
def test_no_more_slices_are_made_than_mxnet_can_place(servers, sliced):
    """Text keys are numbered as they come, and with several servers MXNet's placement overflows at 215,330."""
    book = KeyBook(servers, 1000 * 1000)
    book.add("w", Shape((900_000,), np.float32, 900_000, 3_600_000))
    assert bool(Agreeing(SimpleNamespace(rank=1), book, False).slices(8)) == sliced
