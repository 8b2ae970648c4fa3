"""Gradients to the units of all-reduces: what travels together, and how much of it."""

import doctest
import math
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_mx import ConfigError
from prophet_mx.planning import collective_units
from prophet_mx.planning.collective_units import GROWTH, MARGIN, MAX_UNIT, MIN_UNIT, UnitSizes, fixed_sizes, partition, unit_sizes
from prophet_mx.planning.collectives import CollectiveCost, Gradient, static_order

COSTS = st.builds(CollectiveCost, startup=st.floats(0, 0.01), rate=st.floats(1e3, 1e11))
MEMBERS = st.tuples(st.integers(0, 5000), st.sampled_from([2, 4, 8]), st.integers(0, 2), st.integers(0, 9), st.floats(0, 1))
GRADIENTS = st.lists(MEMBERS.map(lambda drawn: Gradient(drawn[0] * drawn[1], *drawn[1:])), max_size=30)
SIZES = st.builds(
    lambda least, more, turn: UnitSizes(least, least + more, turn), st.integers(1, 20_000), st.integers(0, 40_000), st.floats(0, 1)
)
LAYERS = st.lists(st.integers(1, 200_000).map(lambda count: 4 * count), min_size=1, max_size=30)


def test_the_examples_in_the_documentation_are_true():
    tried = doctest.testmod(collective_units)
    assert tried.attempted >= 3 and tried.failed == 0


@given(GRADIENTS, SIZES, COSTS)
def test_every_element_travels_once_and_each_gradient_and_unit_is_one_range_of_the_flat_array_of_its_kind(gradients, sizes, cost):
    layout = defaultdict(list)
    for each in partition(gradients, sizes, cost):
        assert each.pieces and {gradients[piece.gradient].kind for piece in each.pieces} == {each.kind}
        assert each.bytes == sum((piece.stop - piece.start) * gradients[piece.gradient].itemsize for piece in each.pieces)
        layout[each.kind] += each.pieces
    laid = []
    for pieces in layout.values():
        place = None
        for piece in pieces:
            if piece.start == 0:
                assert place is None or place.stop * gradients[place.gradient].itemsize == gradients[place.gradient].bytes
                laid.append(piece.gradient)
            else:
                assert (piece.gradient, piece.start) == (place.gradient, place.stop)
            place = piece
        assert place.stop * gradients[place.gradient].itemsize == gradients[place.gradient].bytes
    assert sorted(laid) == list(range(len(gradients)))


@given(GRADIENTS, SIZES, COSTS)
def test_a_unit_is_as_urgent_as_its_most_urgent_gradient_and_ready_with_its_last(gradients, sizes, cost):
    units = partition(gradients, sizes, cost)
    assert [each.rank for each in units] == sorted(each.rank for each in units)
    for each in units:
        members = [gradients[piece.gradient] for piece in each.pieces]
        assert each.rank == min(member.rank for member in members)
        assert each.ready == max(member.ready for member in members)


@given(GRADIENTS, SIZES, COSTS)
def test_units_are_no_larger_than_one_and_a_half_times_what_is_asked_for(gradients, sizes, cost):
    """But for an element, as slices are of whole ones."""
    for each in partition(gradients, sizes, cost):
        assert each.bytes <= 1.5 * sizes.most + max(gradients[piece.gradient].itemsize for piece in each.pieces)


@given(GRADIENTS, SIZES, COSTS)
def test_what_fits_into_the_smallest_unit_does_not_travel_apart(gradients, sizes, cost):
    by_kind = defaultdict(list)
    for each in partition(gradients, sizes, cost):
        by_kind[each.kind].append(each)
    for units in by_kind.values():
        for one, other in zip(units, units[1:]):
            spare = max(gradients[piece.gradient].itemsize for piece in one.pieces + other.pieces)  # slices are of whole elements
            assert one.bytes + other.bytes > sizes.least - spare


@given(st.integers(10_000, 10_000_000), st.floats(0.1, 10), st.floats(0, 0.01))
def test_units_shrink_towards_the_end_of_backward_and_grow_from_there_on(count, turn, startup):
    """One large gradient is there from the beginning, and travels before and after the last one becomes ready."""
    gradients = [Gradient(4, 4, 0, 0, turn), Gradient(4 * count, 4, 0, 1, 0.0)]
    cost = CollectiveCost(startup, 1e7)
    sizes = unit_sizes(cost, gradients)
    [_, *slices] = units = partition(gradients, sizes, cost)
    if len(units[0].pieces) > 1:
        slices = units
    begin = 0.0
    for each in slices:
        allowed = max(sizes.least, min(sizes.most, cost.rate * abs(turn - begin) / GROWTH))
        assert each.bytes <= 1.5 * allowed + 8
        if each is not slices[-1]:  # which takes what is left
            assert each.bytes >= 0.99 * allowed - 8
        begin += each.bytes / cost.rate


@given(LAYERS, st.floats(0.1, 3))
def test_nothing_that_starts_before_the_end_of_backward_is_long_in_the_way_of_what_comes_last(layers, rho):
    """Backward takes as long for each byte; the last layer's gradients are there first. Sizes are those for an ideal link, from which one
    that does not interrupt what it sends may be some units away."""
    rate = 1e6
    ready = [sum(layers[place:]) / rate / rho for place in range(len(layers))]
    gradients = [Gradient(size, 4, 0, rank, moment) for rank, (size, moment) in enumerate(zip(layers, ready))]
    cost = CollectiveCost(0.02, rate)
    sizes = unit_sizes(cost, gradients)
    units = partition(gradients, sizes, cost)
    clock = 0.0
    for index in static_order(units, cost):
        start = max(clock, units[index].ready)
        clock = start + cost.seconds(units[index].bytes)
        if start < sizes.turn:
            assert clock - sizes.turn <= 1.5 * sizes.least / rate + sizes.turn / 8


def test_slices_of_one_gradient_do_not_travel_together_and_a_small_neighbour_goes_with_one():
    cost = CollectiveCost(0.001, 1e6)
    big, small = Gradient(9600, 4, 0, 0, 0.5), Gradient(400, 4, 0, 1, 0.4)
    units = partition([big, small], fixed_sizes(4000), cost)
    assert [len(each.pieces) for each in units] == [1, 2] and units[-1].pieces[-1].gradient == 1


def test_small_gradients_share_one_unit():
    gradients = [Gradient(400, 4, 0, rank, 0.5) for rank in range(10)]
    [one] = partition(gradients, fixed_sizes(4000), CollectiveCost(0.0001, 1e6))
    assert [piece.gradient for piece in one.pieces] == list(range(10))
    assert len(partition(gradients, fixed_sizes(2000), CollectiveCost(0.0001, 1e6))) == 2


@given(GRADIENTS, COSTS)
def test_the_same_numbers_give_the_same_plan(gradients, cost):
    plans = []
    for copy in (list(gradients), tuple(gradients)):
        units = partition(copy, unit_sizes(cost, copy), cost)
        plans.append((units, static_order(units, cost)))
    assert plans[0] == plans[1]


@given(COSTS)
def test_units_keep_within_their_limits_and_their_bytes_take_longer_than_a_start_up(cost):
    sizes = unit_sizes(cost, [])
    assert MIN_UNIT <= sizes.least <= sizes.most <= MAX_UNIT
    assert cost.seconds(sizes.least) >= 0.99 * MARGIN * cost.startup or sizes.least == MAX_UNIT


GOOD = CollectiveCost(0.001, 1e6)


@pytest.mark.parametrize(
    "call",
    [
        lambda: unit_sizes(CollectiveCost(-1.0, 1e6), []),
        lambda: unit_sizes(GOOD, [Gradient(10, 4, 0, 0, 0.0)]),
        lambda: partition([], fixed_sizes(0), GOOD),
        lambda: partition([], UnitSizes(2, 1), GOOD),
        lambda: partition([], UnitSizes(1, 2, math.nan), GOOD),
        lambda: partition([], fixed_sizes(8), CollectiveCost(0.001, 0.0)),
        lambda: partition([Gradient(10, 4, 0, 0, 0.0)], fixed_sizes(8), GOOD),
        lambda: partition([Gradient(8, 0, 0, 0, 0.0)], fixed_sizes(8), GOOD),
        lambda: partition([Gradient(8, 4, 0, 0, math.inf)], fixed_sizes(8), GOOD),
    ],
)
def test_numbers_that_make_no_units(call):
    with pytest.raises(ConfigError, match="allowed: "):
        call()
