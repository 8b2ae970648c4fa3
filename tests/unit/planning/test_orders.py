"""The orders of units: when two differ, and the one in which collectives start."""

import doctest
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_mx.planning import orders
from prophet_mx.planning.orders import Orders, differ, static_order
from prophet_mx.planning.unit_sizes import CollectiveCost
from prophet_mx.planning.units import MergedUnit

COSTS = st.builds(CollectiveCost, startup=st.floats(0, 0.01), rate=st.floats(1e3, 1e11))
UNITS = st.lists(
    st.builds(MergedUnit, st.integers(0, 20), st.floats(0, 1), st.just(()), st.integers(0, 10**6), st.just(0)), min_size=1, max_size=40
)


def test_the_examples_in_the_documentation_are_true():
    tried = doctest.testmod(orders)
    assert tried.attempted >= 4 and tried.failed == 0


@given(st.integers(20, 200).flatmap(lambda n: st.tuples(st.permutations(range(n)), st.integers(0, n - 1), st.integers(0, n - 1))))
def test_orders_differ_if_a_unit_is_over_a_twentieth_away(drawn):
    places, source, target = drawn
    moved = list(places)
    moved.insert(target, moved.pop(source))
    far = max(abs(a - b) for a, b in zip(places, moved)) > len(places) / 20
    same = list(range(len(places)))
    assert differ(Orders(places, same), Orders(moved, same)) == differ(Orders(same, places), Orders(same, moved)) == far


@pytest.mark.parametrize("units, apart, different", [(40, 2, False), (40, 3, True), (100, 5, False), (100, 6, True), (10, 1, True)])
def test_two_units_that_change_places_matter_if_these_are_over_a_twentieth_of_all_apart(units, apart, different):
    places = list(range(units))
    changed = [*places]
    changed[1], changed[1 + apart] = changed[1 + apart], changed[1]
    assert differ(Orders(places, places), Orders(changed, places)) == different
    assert differ(Orders(places, changed), Orders(places, places)) == different


def finished(units, order, cost):
    """When an ideal link has done each unit that it takes in this order."""
    clock, ends = -math.inf, {}
    for index in order:
        clock = max(clock, units[index].ready) + cost.seconds(units[index].bytes)
        ends[index] = clock
    return ends


@given(UNITS, COSTS)
def test_whenever_the_link_is_free_the_most_urgent_ready_unit_goes_and_it_is_never_idle_for_nothing(units, cost):
    order = static_order(units, cost)
    assert sorted(order) == list(range(len(units)))
    ends = finished(units, order, cost)
    for place, index in enumerate(order):
        free = ends[order[place - 1]] if place else -math.inf
        start = max(free, units[index].ready)
        assert start == max(free, min(units[later].ready for later in order[place:]))
        assert all(units[later].ready > start or units[later].urgency >= units[index].urgency for later in order[place:])


@given(UNITS, COSTS, st.randoms())
def test_no_order_ends_earlier(units, cost, random):
    order = static_order(units, cost)
    other = random.sample(order, len(order))
    assert max(finished(units, order, cost).values()) <= max(finished(units, other, cost).values()) + 1e-9
