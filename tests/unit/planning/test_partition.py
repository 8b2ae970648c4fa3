"""How gradients become units: the size of a unit, and the slices of a gradient."""

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_mx import ConfigError
from prophet_mx.planning import partition
from prophet_mx.planning.partition import cut, together, unit_bytes
from prophet_mx.sizes import MAX_LONE_UNIT, MAX_UNIT, MIN_UNIT, MOST_SHARE, Traffic, parts_of


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


@given(sizes=st.lists(st.integers(1, 1000)), least=st.integers(1, 3000))
def test_neighbours_together_have_enough_and_no_fewer_would(sizes, least):
    counts = together(sizes, least)
    assert sum(counts) == len(sizes) and all(counts)
    groups = [[sizes.pop(0) for _ in range(count)] for count in counts]
    if len(groups) > 1:
        assert all(sum(group) >= least for group in groups)
        assert all(sum(group[:-1]) < least for group in groups[:-1])


TRAFFIC = st.builds(
    Traffic,
    sizes=st.lists(st.integers(0, 10**8), max_size=10),
    rate=st.floats(1e4, 1e11),
    message=st.floats(0, 0.1),
    workers=st.integers(1, 5000),
    servers=st.integers(1, 5000),
)


def most_of(traffic):
    return min(MAX_UNIT, max(MIN_UNIT, sum(traffic.sizes) // traffic.servers)) if traffic.servers > 1 else MAX_LONE_UNIT


@given(TRAFFIC)
def test_a_unit_keeps_within_its_limits_and_grows_with_what_a_message_costs(traffic):
    size = unit_bytes("prophet", traffic)
    assert MIN_UNIT <= size <= most_of(traffic)
    assert size <= unit_bytes("prophet", traffic._replace(message=10.0))


@given(TRAFFIC)
def test_messages_take_no_more_than_their_share_of_the_wire_s_time(traffic):
    traffic = traffic._replace(message=max(traffic.message, 1e-6))
    unit = unit_bytes("prophet", traffic)
    parts = [parts_of(size, unit) for size in traffic.sizes]
    slices = sum(count for count in parts if count > 1)
    wire = sum(traffic.sizes) / (traffic.rate * traffic.servers)
    # A unit is a whole number of bytes: what is lost by that makes at most one more slice of each gradient.
    assert unit == most_of(traffic) or (slices - len(parts)) * traffic.message <= max(
        MOST_SHARE / 2 * wire, MOST_SHARE * wire - parts.count(1) * traffic.message
    )


def test_long_iterations_have_larger_units_and_fewer_messages_per_second():
    """By the square root of what a round of messages takes of the time on the wire."""
    short, long = (Traffic([size], 62.5e6, 0.0004) for size in (10**7, 4 * 10**7))
    assert unit_bytes("prophet", long) == pytest.approx(2 * unit_bytes("prophet", short), rel=0.15)


def test_without_a_measured_cost_a_server_gets_no_more_messages_than_it_surely_can_take():
    unit = unit_bytes("prophet", Traffic([100_000_000], rate=1.25e9 / 64, workers=64))
    assert 1.25e9 / unit <= 4000  # per second


def test_what_the_user_sets_is_taken_as_it_is():
    assert unit_bytes("prophet", Traffic([10**9], 1e9, 0.01, 64), 1234) == 1234


@pytest.mark.parametrize(
    "call",
    [
        lambda: cut(-1, 4, 16),
        lambda: cut(10, 4, None),
        lambda: cut(10.0, 4, 16),
        lambda: cut(10, 4, float("nan")),
        lambda: cut(10, 4, -1),
        lambda: unit_bytes("fastest", Traffic([10], 1e6)),
        lambda: unit_bytes("prophet", Traffic([10], float("nan"))),
        lambda: unit_bytes("prophet", Traffic([10], -1.0)),
        lambda: unit_bytes("prophet", Traffic(["10"], 1e6)),
        lambda: unit_bytes("fifo", Traffic([10], 1e6), 0),
        lambda: unit_bytes("prophet", Traffic([10], 1e6, message=-1.0)),
        lambda: unit_bytes("prophet", Traffic([10], 1e6, servers=0)),
    ],
)
def test_layouts_of_wrong_sizes(call):
    with pytest.raises(ConfigError, match="allowed: "):
        call()


def test_the_smallest_units_of_a_huge_gradient_are_a_million():
    assert len(cut(2**40, 4, 4)) == 2**20
