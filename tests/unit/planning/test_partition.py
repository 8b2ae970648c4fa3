"""How gradients become units: the size of a unit, and the slices of a gradient."""

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_mx import ConfigError
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


@given(
    elements=st.integers(0, 10_000_000),
    element_bytes=st.sampled_from([2, 4, 8]),
    unit=st.integers(32_000, 4_000_000),
    most=st.integers(16_000, 1_000_000),
)
def test_no_slice_reaches_the_number_of_elements_that_mxnet_spreads_over_servers(elements, element_bytes, unit, most):
    slices = cut(elements, element_bytes, unit, most)
    assert slices[0].start == 0 and slices[-1].stop == elements and all(one.stop == other.start for one, other in zip(slices, slices[1:]))
    assert max(part.stop - part.start for part in slices) <= most


@given(rate=st.floats(1e4, 1e11), total=st.integers(0, 10**11), workers=st.integers(1, 5000))
def test_a_unit_keeps_within_its_limits_and_grows_with_each_of_its_reasons(rate, total, workers):
    size = unit_bytes("prophet", rate, total, None, workers)
    assert MIN_UNIT <= size <= MAX_UNIT
    assert size <= unit_bytes("prophet", 2 * rate, total, None, workers)
    assert size <= unit_bytes("prophet", rate, 2 * total, None, workers)
    assert size <= unit_bytes("prophet", rate, total, None, 2 * workers)


@pytest.mark.parametrize("workers", [2, 16, 64, 256])
def test_a_server_gets_no_more_messages_than_it_can_take(workers):
    link = 1.25e9  # 10 Gbit/s, shared by the workers
    unit = unit_bytes("prophet", link / workers, 100_000_000 // workers, None, workers)
    assert link / unit <= 4001  # messages per second


def test_what_the_user_sets_is_taken_as_it_is():
    assert unit_bytes("prophet", 1e9, 10**9, 1234, 64) == 1234


@pytest.mark.parametrize(
    "call",
    [
        lambda: cut(-1, 4, 16),
        lambda: cut(10, 4, None),
        lambda: cut(10.0, 4, 16),
        lambda: cut(10, 4, float("nan")),
        lambda: cut(10, 4, -1),
        lambda: unit_bytes("fastest", 1e6, 10, None),
        lambda: unit_bytes("prophet", float("nan"), 10, None),
        lambda: unit_bytes("prophet", -1.0, 10, None),
        lambda: unit_bytes("prophet", 1e6, "10", None),
        lambda: unit_bytes("fifo", 1e6, 10, 0),
    ],
)
def test_layouts_of_wrong_sizes(call):
    with pytest.raises(ConfigError, match="allowed: "):
        call()


def test_the_smallest_units_of_a_huge_gradient_are_a_million():
    assert len(cut(2**40, 4, 4)) == 2**20
