"""How large units are: of messages by the policy, of collectives by what one costs."""

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_mx.planning import unit_sizes
from prophet_mx.planning.unit_sizes import (
    MARGIN,
    MIN_COLLECTIVE_UNIT,
    CollectiveCost,
    UnitSizes,
    below_a_unit,
    collective_sizes,
    too_small,
    too_small_for_collectives,
    unit_bytes,
)
from prophet_mx.policies import POLICIES
from prophet_mx.sizes import MAX_COLLECTIVE_UNIT, MAX_LONE_UNIT, MAX_UNIT, MIN_UNIT, MOST_SHARE, Traffic, parts_of


def test_the_examples_in_the_documentation_are_true():
    tried = doctest.testmod(unit_sizes)
    assert tried.attempted >= 3 and tried.failed == 0


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


@given(st.builds(CollectiveCost, startup=st.floats(0, 0.01), rate=st.floats(1e3, 1e11)))
def test_units_keep_within_their_limits_and_their_bytes_take_longer_than_a_start_up(cost):
    sizes = collective_sizes(cost, 0.0)
    assert MIN_COLLECTIVE_UNIT <= sizes.least <= sizes.most <= MAX_COLLECTIVE_UNIT
    assert cost.seconds(sizes.least) >= 0.99 * MARGIN * cost.startup or sizes.least == MAX_COLLECTIVE_UNIT


def test_small_gradients_that_share_messages_leave_room_for_smaller_units():
    sizes = [400_000, 1_000, 1_000, 1_000] * 20
    alone, grouped = (Traffic(sizes, 62.5e6, 0.0005, grouped=grouped) for grouped in (False, True))
    large_alone = Traffic([400_000] * 20, 62.5e6, 0.0005)
    assert unit_bytes("prophet", large_alone) <= unit_bytes("prophet", grouped) < 0.8 * unit_bytes("prophet", alone)


@given(TRAFFIC)
def test_the_policy_s_own_unit_is_never_called_too_small(traffic):
    for policy in POLICIES:
        chosen = unit_bytes(policy, traffic)
        assert too_small(policy, traffic, None) == too_small(policy, traffic, chosen) == ""


@pytest.mark.parametrize("policy", ["prophet", "priority", "fifo"])
def test_a_unit_of_bytes_where_kilobytes_were_meant_is_called_too_small(policy):
    traffic = Traffic([2_000_000] * 4, rate=125e6, message=0.00025)
    assert "makes 31252 messages per iteration" in too_small(policy, traffic, 256)
    assert too_small(policy, traffic, 256_000) == too_small(policy, traffic._replace(sizes=[4000] * 4), 256) == ""
    assert (
        too_small_for_collectives(8_000_000, 256_000)
        == too_small_for_collectives(8_000, 256)
        == too_small_for_collectives(10**9, None)
        == ""
    )
    assert "makes about 31250 collectives" in too_small_for_collectives(8_000_000, 256)


def test_limits_below_a_unit():
    assert "lead=99" in below_a_unit("lead", 99, 100)
    assert below_a_unit("window", 100, 100) == below_a_unit("window", None, 100) == below_a_unit("window", 1, 0) == ""


def test_where_whole_gradients_take_all_the_messages_large_ones_are_sliced_all_the_same():
    """Slices may still take half of the share: 14% of 288 ms on the wire."""
    traffic = Traffic([16_000_000] + [1_000] * 2_000, 62.5e6, 0.0005)
    slices = parts_of(16_000_000, unit_bytes("prophet", traffic))
    assert 0.9 * 0.0408 < slices * traffic.message <= 0.0408


@pytest.mark.parametrize("begin, end, size", [(0.2, 0.6, 1000), (1.8, 3.0, 2000), (0.2, 1.8, 500), (0.2, 1.0, 500), (-9.0, -8.0, 8000)])
def test_a_unit_has_the_size_of_its_part_that_is_nearest_to_the_end_of_backward(begin, end, size):
    """A quarter of what the link carries in between, here 10 KB/s: what is sent about then has to wait least."""
    assert UnitSizes(500, 8000, 1.0).during(begin, end, 10_000) == pytest.approx(size)
