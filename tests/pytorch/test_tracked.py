"""The states of a parameter: every transition of the table is one that a method makes, and no other."""

import pytest
import torch
from torch import nn

from prophet_mx.torch.guards import GuardedParameter, plainly
from prophet_mx.torch.tracked import CLEARED, HIDDEN, IDLE, OWN, STEPPING, SUMMING, TRANSITIONS, ZEROED, Tracked

STAGES = (IDLE, SUMMING, STEPPING)


class Step:
    """A ``step()`` that updates nothing."""

    marks = ()

    def apply(self, members):
        pass


def parameter(stage):
    """A parameter that has come to this stage as it does in a training."""
    tracked = Tracked(nn.Parameter(torch.ones(3)), "weight", 0)
    tracked.place(torch.zeros(3), [0], 0)
    tracked.watch(None)  # nothing here asks for what others have to do
    if stage != IDLE:
        tracked.contribute(0, False, None)
    if stage == STEPPING:
        tracked.ask(Step(), tracked.view)
    return tracked


CHANGES = {
    "expect": lambda tracked: tracked.expect(),
    "contribute": lambda tracked: tracked.contribute(0, False, None),
    "ask": lambda tracked: tracked.ask(Step(), tracked.view),
    "settle": lambda tracked: tracked.settle(),
    "release": lambda tracked: tracked.release(),
    "leave": lambda tracked: tracked.leave(),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("what", TRANSITIONS)
def test_a_method_makes_the_transition_of_its_name_and_no_other(what, stage):
    tracked = parameter(stage)
    assert tracked.stage == stage
    if stage not in TRANSITIONS[what]:
        with pytest.raises(KeyError):
            CHANGES[what](tracked)
        return
    CHANGES[what](tracked)
    assert tracked.stage == TRANSITIONS[what][stage]
    assert type(tracked.param) is (nn.Parameter if tracked.stage == IDLE else GuardedParameter)


@pytest.mark.parametrize("stage, slot", [(IDLE, OWN), (SUMMING, CLEARED), (STEPPING, CLEARED)])
def test_a_cleared_gradient_is_none_and_an_update_under_way_still_has_it(stage, slot):
    tracked = parameter(stage)
    tracked.clear()
    assert tracked.slot == slot and tracked.param.grad is None
    assert tracked.gradient is (tracked.view if stage == STEPPING else None)


@pytest.mark.parametrize("stage", STAGES)
def test_zeros_come_later_only_while_an_update_is_under_way(stage):
    tracked = parameter(stage)
    before = tracked.slot
    assert tracked.zero_later() == (stage == STEPPING)
    assert tracked.slot == (ZEROED if stage == STEPPING else before)
    if stage == STEPPING:
        with plainly():
            tracked.view.fill_(1)
            tracked.updated(None)
            assert tracked.update is None and tracked.view.tolist() == [0, 0, 0]


def test_a_sum_is_hidden_until_it_is_shown():
    tracked = parameter(SUMMING)
    assert tracked.hidden and tracked.slot == HIDDEN
    assert tracked.land()
    tracked.show()
    assert not tracked.hidden and tracked.slot == OWN and tracked.param.grad is not None
