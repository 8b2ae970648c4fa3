"""All-reduce in one order: what it costs, and the order."""

import doctest
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_mx import ConfigError
from prophet_mx.planning import collectives
from prophet_mx.planning.bound import lower_bound
from prophet_mx.planning.collectives import CollectiveCost, CollectiveUnit, ring_bound, ring_rate, static_order
from support.profiles import make_profile

COSTS = st.builds(CollectiveCost, startup=st.floats(0, 0.01), rate=st.floats(1e3, 1e11))
UNITS = st.lists(
    st.builds(CollectiveUnit, st.integers(0, 20), st.floats(0, 1), st.just(()), st.integers(0, 10**6), st.just(0)), min_size=1, max_size=40
)


def test_the_examples_in_the_documentation_are_true():
    tried = doctest.testmod(collectives)
    assert tried.attempted >= 3 and tried.failed == 0


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
        assert all(units[later].ready > start or units[later].rank >= units[index].rank for later in order[place:])


@given(UNITS, COSTS, st.randoms())
def test_no_order_ends_earlier(units, cost, random):
    order = static_order(units, cost)
    other = random.sample(order, len(order))
    assert max(finished(units, order, cost).values()) <= max(finished(units, other, cost).values()) + 1e-9


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
        lambda: static_order([], CollectiveCost(-1.0, 1e6)),
        lambda: static_order([], CollectiveCost(0.001, 0.0)),
        lambda: static_order([], CollectiveCost(0.001, math.nan)),
        lambda: static_order([CollectiveUnit(0, math.nan, (), 8, 0)], GOOD),
        lambda: ring_rate(1e6, 1),
        lambda: ring_rate(0, 2),
    ],
)
def test_numbers_that_make_no_plan(call):
    with pytest.raises(ConfigError, match="allowed: "):
        call()
