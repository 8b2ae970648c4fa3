"""The plan of a round of collectives: what it is made of, and when its numbers are no longer those of the job."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_mx.planning.rounds import DRIFT, LEAST_RATE, RATE_DRIFT, Parameter, RoundPlanner
from prophet_mx.planning.unit_sizes import CollectiveCost

COST = CollectiveCost(0.001, 1e8)
PARAMETERS = [Parameter("weight", 4_000_000, 4, "float32"), Parameter("half", 2000, 2, "float16"), Parameter("bias", 4000, 4, "float32")]


def planner(unit=None):
    made = RoundPlanner(PARAMETERS, unit)
    made.measured(COST)
    return made


def test_before_there_is_a_profile_the_last_parameters_go_first():
    plan = planner().first_plan(1_000_000)
    assert plan.order == list(range(len(plan.units)))[::-1] and plan.urgency == [0, 1, 2]
    assert plan.cost is None and plan.profile is None and plan.steps() == {}
    assert sum(unit.bytes for unit in plan.units) == sum(each.bytes for each in PARAMETERS)


@given(st.permutations(range(3)), st.lists(st.floats(0, 1), min_size=3, max_size=3))
def test_a_plan_follows_the_order_of_forward_whatever_the_order_of_the_model(urgency, ready):
    made = planner()
    profile = made.profile(ready, urgency)
    assert [gradient.name for gradient in profile.gradients] == [PARAMETERS[urgency.index(place)].name for place in range(3)]
    plan = made.plan(profile, COST)
    assert plan.urgency == list(urgency) and plan.cost == COST and sorted(plan.order) == list(range(len(plan.units)))
    for unit in plan.units:
        members = [part.gradient for part in unit.slices]
        assert unit.urgency == min(urgency[index] for index in members)
        assert len({PARAMETERS[index].kind for index in members}) == 1
    assert set(plan.steps()) == {each.name for each in PARAMETERS}


def test_a_unit_that_the_user_has_set_is_taken():
    plan = planner(1_000_000).plan(planner().profile([0.1, 0.1, 0.0], [0, 1, 2]), COST)
    assert len([unit for unit in plan.units if unit.bytes >= 1_000_000]) == 4


@pytest.mark.parametrize("moved, drifted", [(0.9 * DRIFT, False), (1.2 * DRIFT, True)])
def test_ready_times_drift_by_a_share_of_backward(moved, drifted):
    made, before = planner(), [1.0, 0.5, 0.0]
    assert not made.drifted([], None)
    assert not made.drifted([before], None)
    now = [1.0, 0.5 + moved, 0.0 + 2 * moved]
    now = [time - min(now) for time in now]
    made = planner()
    made.resume(made.profile(before, [0, 1, 2]), COST)
    assert made.drifted([now], None) == drifted
    assert not made.drifted([now], None)  # this was the last look


@pytest.mark.parametrize("share, taken", [(1.0, None), (1 - RATE_DRIFT / 2, None), (0.9, 0.9), (0.1, LEAST_RATE), (2.0, None)])
def test_the_job_s_own_rate_is_taken_unless_it_shows_slow_ranks(share, taken):
    made = planner()
    made.plan(made.profile([1.0, 0.5, 0.0], [0, 1, 2]), COST)
    assert made.drifted([], share * COST.rate) == (taken is not None)
    assert made.cost.rate == pytest.approx((taken or 1) * COST.rate) and made.cost.startup == COST.startup
