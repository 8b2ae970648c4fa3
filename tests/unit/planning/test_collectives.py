"""All-reduce in one order: the units, their size, and the order."""

import doctest
import math
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_mx import ConfigError
from prophet_mx.planning import collectives
from prophet_mx.planning.bound import lower_bound
from prophet_mx.planning.collectives import (
    AHEAD,
    HIDDEN,
    MARGIN,
    MAX_UNIT,
    MIN_UNIT,
    CollectiveCost,
    CollectiveUnit,
    Gradient,
    partition,
    ring_bound,
    ring_rate,
    static_order,
    unit_size,
)
from support.profiles import make_profile

COSTS = st.builds(CollectiveCost, startup=st.floats(0, 0.01), rate=st.floats(1e3, 1e11))
MEMBERS = st.tuples(st.integers(0, 5000), st.sampled_from([2, 4, 8]), st.integers(0, 2), st.integers(0, 9), st.floats(0, 1))
GRADIENTS = st.lists(MEMBERS.map(lambda drawn: Gradient(drawn[0] * drawn[1], *drawn[1:])), max_size=30)
UNITS = st.lists(
    st.builds(CollectiveUnit, st.integers(0, 20), st.floats(0, 1), st.just(()), st.integers(0, 10**6), st.just(0)), min_size=1, max_size=40
)


def test_the_examples_in_the_documentation_are_true():
    tried = doctest.testmod(collectives)
    assert tried.attempted >= 6 and tried.failed == 0


def finished(units, order, cost):
    """When an ideal link has done each unit that it takes in this order."""
    clock, ends = -math.inf, {}
    for index in order:
        clock = max(clock, units[index].ready) + cost.seconds(units[index].bytes)
        ends[index] = clock
    return ends


@given(GRADIENTS, st.integers(1, 20_000), COSTS)
def test_every_element_travels_once_and_each_gradient_and_unit_is_one_range_of_the_flat_array_of_its_kind(gradients, unit, cost):
    layout = defaultdict(list)
    for each in partition(gradients, unit, cost):
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


@given(GRADIENTS, st.integers(1, 20_000), COSTS)
def test_a_unit_is_as_urgent_as_its_most_urgent_gradient_and_ready_with_its_last(gradients, unit, cost):
    units = partition(gradients, unit, cost)
    assert [each.rank for each in units] == sorted(each.rank for each in units)
    for each in units:
        members = [gradients[piece.gradient] for piece in each.pieces]
        assert each.rank == min(member.rank for member in members)
        assert each.ready == max(member.ready for member in members)


@given(GRADIENTS, st.integers(8, 20_000), COSTS)
def test_units_are_no_larger_than_one_and_a_half_times_what_is_asked_for(gradients, unit, cost):
    """But for an element, as slices are of whole ones: five of 8 bytes in four slices of about 10."""
    for each in partition(gradients, unit, cost):
        assert each.bytes <= 1.5 * unit + max(gradients[piece.gradient].itemsize for piece in each.pieces)


@given(GRADIENTS, st.integers(1, 20_000), COSTS)
def test_no_link_is_idle_for_longer_than_a_start_up_because_of_what_travels_together(gradients, unit, cost):
    for each in partition(gradients, unit, cost):
        members = [(gradients[piece.gradient], piece) for piece in each.pieces]
        first = min(member.ready for member, _ in members)
        early = sum((piece.stop - piece.start) * member.itemsize for member, piece in members if member.ready < each.ready)
        assert min(each.ready - first, early / cost.rate) <= cost.startup


def test_slices_of_one_gradient_do_not_travel_together_and_a_small_neighbour_goes_with_one():
    cost = CollectiveCost(0.001, 1e6)
    big, small = Gradient(10_000, 4, 0, 0, 0.5), Gradient(400, 4, 0, 1, 0.4)
    units = partition([big, small], 4000, cost)
    assert [len(each.pieces) for each in units] == [1, 1, 2] and units[-1].pieces[-1].gradient == 1


def test_small_gradients_that_are_ready_together_share_one_unit():
    gradients = [Gradient(400, 4, 0, rank, 0.5) for rank in range(10)]
    [one] = partition(gradients, 4000, CollectiveCost(0.0001, 1e6))
    assert [piece.gradient for piece in one.pieces] == list(range(10))
    assert len(partition(gradients, 2000, CollectiveCost(0.0001, 1e6))) == 2


def test_a_tiny_gradient_waits_for_its_neighbour_and_a_large_one_does_not():
    cost = CollectiveCost(0.001, 1e6)  # 1000 bytes take a start-up
    late = Gradient(4000, 4, 0, 0, 0.5)
    assert len(partition([late, Gradient(800, 4, 0, 1, 0.4)], 10_000, cost)) == 1
    assert len(partition([late, Gradient(1200, 4, 0, 1, 0.4)], 10_000, cost)) == 2
    assert len(partition([late, Gradient(1200, 4, 0, 1, 0.4995)], 10_000, cost)) == 1


@given(UNITS, COSTS)
def test_whenever_the_link_is_free_the_most_urgent_ready_unit_goes_and_it_is_never_idle_for_nothing(units, cost):
    order = static_order(units, cost)
    assert sorted(order) == list(range(len(units)))
    ends = finished(units, order, cost)
    for place, index in enumerate(order):
        free = ends[order[place - 1]] if place else -math.inf
        start = max(free, units[index].ready)
        assert start == max(free, min(units[later].ready for later in order[place:]))
        assert all(units[later].ready > start or units[later].rank >= units[index].rank for later in order[place:])


@given(UNITS, COSTS, st.randoms())
def test_no_order_ends_earlier(units, cost, random):
    order = static_order(units, cost)
    other = random.sample(order, len(order))
    assert max(finished(units, order, cost).values()) <= max(finished(units, other, cost).values()) + 1e-9


@given(GRADIENTS, COSTS)
def test_the_same_numbers_give_the_same_plan(gradients, cost):
    plans = []
    for copy in (list(gradients), tuple(gradients)):
        units = partition(copy, unit_size(cost, sum(gradient.bytes for gradient in gradients)), cost)
        plans.append((units, static_order(units, cost)))
    assert plans[0] == plans[1]


@given(COSTS, st.integers(0, 10**12))
def test_a_unit_keeps_within_its_limits_and_grows_with_the_start_up_and_the_bytes(cost, total):
    size = unit_size(cost, total)
    assert MIN_UNIT <= size <= MAX_UNIT
    assert unit_size(cost._replace(startup=cost.startup / 2), total) <= size <= unit_size(cost, 2 * total)


@given(st.floats(1e-5, 1e-3), st.floats(1e7, 1e10), st.floats(0.2, 1), st.floats(1, 5))
def test_no_other_size_costs_less_in_start_ups_and_in_what_is_in_front_of_the_first_layer(startup, rate, seconds, factor):
    """Where neither limit is reached."""
    total = round(seconds * rate)
    cost = CollectiveCost(startup, rate)
    size = unit_size(cost, total)

    def lost(unit):
        return HIDDEN * total / unit * startup + AHEAD * unit / rate

    if MIN_UNIT < size < MAX_UNIT and size > (MARGIN + 0.01) * startup * rate:
        assert lost(size) <= lost(size * factor) + 1e-9 and lost(size) <= lost(size / factor) + 1e-9


@given(st.floats(1e-5, 1e-2), st.floats(1e7, 1e9), st.integers(0, 10**9))
def test_the_bytes_of_a_unit_take_longer_than_a_start_up(startup, rate, total):
    cost = CollectiveCost(startup, rate)
    assert cost.seconds(unit_size(cost, total)) >= 1.99 * startup or unit_size(cost, total) == MAX_UNIT


@given(st.lists(st.tuples(st.integers(1, 10**7), st.floats(0.001, 0.1)), min_size=1, max_size=9), st.floats(1e6, 1e9))
def test_the_bound_of_a_ring_is_that_of_a_link_that_carries_each_byte_as_often_as_a_ring_does(layers, link):
    sizes, seconds = zip(*layers)
    profile = make_profile(sizes, seconds, seconds)
    assert ring_bound(profile, link, 2) == lower_bound(profile, link)
    assert ring_bound(profile, link, 4) == pytest.approx(lower_bound(profile, link / 1.5))
    assert ring_rate(link, 1000) == pytest.approx(link / 2, rel=0.002)


GOOD = CollectiveCost(0.001, 1e6)


@pytest.mark.parametrize(
    "call",
    [
        lambda: unit_size(CollectiveCost(-1.0, 1e6), 10),
        lambda: unit_size(CollectiveCost(0.001, 0.0), 10),
        lambda: unit_size(CollectiveCost(0.001, math.nan), 10),
        lambda: unit_size(GOOD, -1),
        lambda: unit_size(GOOD, 1.5),
        lambda: partition([], 0, GOOD),
        lambda: partition([Gradient(10, 4, 0, 0, 0.0)], 8, GOOD),
        lambda: partition([Gradient(8, 0, 0, 0, 0.0)], 8, GOOD),
        lambda: partition([Gradient(8, 4, 0, 0, math.inf)], 8, GOOD),
        lambda: static_order([CollectiveUnit(0, math.nan, (), 8, 0)], GOOD),
        lambda: ring_rate(1e6, 1),
        lambda: ring_rate(0, 2),
    ],
)
def test_numbers_that_make_no_plan(call):
    with pytest.raises(ConfigError, match="allowed: "):
        call()
