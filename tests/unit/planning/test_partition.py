"""How gradients become units: the size of a unit, and the slices of a gradient."""
import doctest
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_mx.mxnet.agreement import Agreeing
from prophet_mx.mxnet.keys import KeyBook, Shape
from prophet_mx.planning import partition
from prophet_mx.planning.partition import cut, unit_bytes
from prophet_mx.sizes import MAX_UNIT, MIN_UNIT


def test_the_examples_in_the_documentation_are_true():
    tried = doctest.testmod(partition)
    assert tried.attempted >= 4 and tried.failed == 0


@given(elements=st.integers(0, 10_000), element_bytes=st.sampled_from([2, 4, 8]), unit=st.integers(0, 50_000))
def test_slices_are_the_gradient_in_pieces_of_about_a_unit(elements, element_bytes, unit):
    slices = cut(elements, element_bytes, unit)
    assert slices[0].start == 0 and slices[-1].stop == elements
    assert all(one.stop == other.start for one, other in zip(slices, slices[1:]))
    lengths = [part.stop - part.start for part in slices]
    assert max(lengths) - min(lengths) <= 1
    if unit == 0:
        assert len(slices) == 1
    elif len(slices) > 1:
        assert min(lengths) > 0 and (max(lengths) - 1) * element_bytes <= unit


@given(elements=st.integers(0, 10_000_000), element_bytes=st.sampled_from([2, 4, 8]), unit=st.integers(32_000, 4_000_000),
       most=st.integers(16_000, 1_000_000))
def test_no_slice_reaches_the_number_of_elements_that_mxnet_spreads_over_servers(elements, element_bytes, unit, most):
    slices = cut(elements, element_bytes, unit, most)
    assert slices[0].start == 0 and slices[-1].stop == elements and all(one.stop == other.start for one, other in zip(slices, slices[1:]))
    assert max(part.stop - part.start for part in slices) <= most


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


@given(rate=st.floats(1e4, 1e11), total=st.integers(0, 10**11), workers=st.integers(1, 5000))
def test_a_unit_keeps_within_its_limits_and_grows_with_each_of_its_reasons(rate, total, workers):
    size = unit_bytes("prophet", rate, total, None, workers)
    assert MIN_UNIT <= size <= MAX_UNIT
    assert size <= unit_bytes("prophet", 2 * rate, total, None, workers)
    assert size <= unit_bytes("prophet", rate, 2 * total, None, workers)
    assert size <= unit_bytes("prophet", rate, total, None, 2 * workers)


@pytest.mark.parametrize("workers", [2, 16, 64, 256])
def test_a_server_gets_no_more_messages_than_it_can_take(workers):
    link = 1.25e9                                               # 10 Gbit/s, shared by the workers
    unit = unit_bytes("prophet", link / workers, 100_000_000 // workers, None, workers)
    assert link / unit <= 4001                                  # messages per second


def test_what_the_user_sets_is_taken_as_it_is():
    assert unit_bytes("prophet", 1e9, 10**9, 1234, 64) == 1234
