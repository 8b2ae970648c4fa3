"""Rounds in two halves: who owns which gradient, and in which order the halves go."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_mx.planning.owners import order_of_halves, owners
from prophet_mx.planning.rounds import HALVES, TOGETHER, Parameter, RoundPlanner
from prophet_mx.planning.unit_sizes import CollectiveCost
from prophet_mx.planning.units import MergedUnit

COST = CollectiveCost(0.0005, 1e8)
SIZES = st.lists(st.integers(0, 10**7), min_size=1, max_size=30)


@given(SIZES, st.integers(2, 5), st.randoms())
def test_shares_are_as_equal_as_whole_gradients_allow(sizes, ranks, random):
    found = owners(sizes, [random.random() for _ in sizes], ranks)
    loads = [sum(size for size, owner in zip(sizes, found) if owner == rank) for rank in range(ranks)]
    owned = [size for size, owner in zip(sizes, found) if owner is not None]
    assert max(loads) - min(loads) <= max(owned, default=0)
    assert all(size > sum(sizes) / ranks for size, owner in zip(sizes, found) if owner is None)


RANKS = 3
OWNERS = st.sampled_from([*range(RANKS), None])


@given(st.lists(st.tuples(st.floats(0, 0.1), st.integers(1, 10**6), OWNERS), min_size=1, max_size=30))
def test_each_half_has_its_turn_after_what_it_needs(drawn):
    units = [MergedUnit(place, ready, (), size, 0) for place, (ready, size, _) in enumerate(drawn)]
    owner_of = [each for _, _, each in drawn]
    order = order_of_halves(units, owner_of, RANKS, COST)
    owned = [owner is not None for owner in owner_of]
    count, norms = len(units), len(units) + sum(owned)
    assert sorted(order) == list(range(norms + 1))
    place = {number: position for position, number in enumerate(order)}
    assert all(place[unit] < place[norms] for unit in range(count))
    second = dict(zip((unit for unit in range(count) if owned[unit]), range(count, norms)))
    assert all(place[unit] < place[half] for unit, half in second.items())
    for owner in range(RANKS):
        halves = [half for unit, half in second.items() if owner_of[unit] == owner and place[half] > place[norms]]
        assert [half for half in order if half in halves] == halves  # the most urgent first, as the next forward needs them


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_second_halves_hold_up_no_first_halves(ranks):
    """With twice as many bytes as fit into backward, there is no time to spare in it."""
    size, count = 10**6, 120
    units = [MergedUnit(count - place, 0.5 * place * size / COST.rate, (), size, 0) for place in range(count)]
    order = order_of_halves(units, [place % ranks for place in range(count)], ranks, COST)
    last = max(place for place, number in enumerate(order) if number < count)
    assert last < 1.1 * count


def test_links_are_busy_in_both_directions():
    """Two ranks own as much, of what is ready at once: in the order, both are sent to in turn."""
    units = [MergedUnit(place, 0.0, (), 10**6, 0) for place in range(20)]
    order = order_of_halves(units, [0] * 10 + [1] * 10, 2, COST)
    assert all({place < 10 for place in order[turn : turn + 2]} == {True, False} for turn in range(0, 20, 2))


@given(SIZES.filter(any), st.integers(2, 4), st.booleans(), st.booleans(), st.randoms())
def test_a_plan_in_halves_has_every_element_once_and_one_owner_for_a_unit(sizes, ranks, parts, divide, random):
    parameters = [Parameter(str(index), 4 * size, 4, "float32", parts) for index, size in enumerate(sizes)]
    planner = RoundPlanner(parameters, None)
    urgency = list(range(len(sizes)))
    random.shuffle(urgency)
    profile = planner.profile([0.1 - 0.001 * place for place in urgency], urgency)
    plan = planner.plan(profile, COST, HALVES, ranks, divide)
    assert len(plan.owners) == len(plan.units) * (plan.way == HALVES)
    elements = [0] * len(sizes)
    owners_of = [[] for _ in sizes]
    for unit, owner in zip(plan.units, plan.owners or [None] * len(plan.units)):
        for part in unit.slices:
            assert part.start == elements[part.gradient]
            elements[part.gradient] = part.stop
            owners_of[part.gradient].append(owner)
    assert elements == sizes
    for size, some in zip(sizes, owners_of):
        if parts and divide and size * ranks > sum(sizes):  # the ranks add up squares one after the other
            assert some == sorted(some) and len(plan.units) >= len(some) and None not in some
        else:
            assert len(set(some)) <= 1


LARGE = [10**6, 10**7, 10**6]


def plan_of_large(parts, ranks=2):
    planner = RoundPlanner([Parameter(str(index), size, 4, "float32", parts) for index, size in enumerate(LARGE)], None)
    return planner.plan(planner.profile([0.2, 0.1, 0.0], [0, 1, 2]), COST, HALVES, ranks)


def test_a_gradient_that_is_most_of_all_bytes_and_has_no_parts_leaves_nothing_to_halve():
    plan = plan_of_large(parts=False)
    assert (plan.way, plan.owners) == (TOGETHER, ())


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_gradient_that_is_most_of_all_bytes_is_shared_out_evenly(ranks):
    plan = plan_of_large(parts=True, ranks=ranks)
    assert plan.way == HALVES
    loads = [sum(unit.bytes for unit, owner in zip(plan.units, plan.owners) if owner == rank) for rank in range(ranks)]
    parts = max(unit.bytes for unit in plan.units if unit.slices[0].gradient == 1)
    assert max(loads) - min(loads) <= max(LARGE[::2]) + 2 * parts


@given(st.lists(st.tuples(st.integers(1, 10**7), st.floats(0, 0.1)), min_size=1, max_size=30))
def test_what_is_waited_for_together_travels_as_it_becomes_ready(drawn):
    parameters = [Parameter(str(index), 4 * size, 4, "float32") for index, (size, _) in enumerate(drawn)]
    planner = RoundPlanner(parameters, None)
    urgency = list(range(len(drawn)))[::-1]
    plan = planner.plan(planner.profile([ready for _, ready in drawn], urgency), COST, TOGETHER)
    moments = [plan.units[unit].ready for unit in plan.order]
    assert moments == sorted(moments)
    assert plan.urgency == urgency  # of updates, which the next forward needs
