"""Plans that the ranks agree on: which iterations they are made of, and whose times."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from torch import nn

from prophet_mx import Config
from prophet_mx.planning.rounds import URGENT
from prophet_mx.torch.agreement import Learner, Planning
from prophet_mx.torch.strategies import AllReduce
from prophet_mx.torch.tracked import Tracked
from support.ranks import on_ranks

TIMES = [[0.2, 0.1, 0.0], [0.05, 0.3, 0.0]]  # by rank: when each of three gradients is ready


@on_ranks(2)
def test_a_gradient_is_planned_for_when_the_last_rank_has_it():
    """Before that no collective of it can begin."""
    model = nn.ParameterList([nn.Parameter(nn.init.ones_(nn.Linear(8, 8).weight)) for _ in range(3)])
    tracked = [Tracked(param, f"p{index}", index) for index, param in enumerate(model)]
    group = dist.new_group()
    planning = Planning(group, AllReduce(group), tracked, Config())
    plan = planning.learn([TIMES[group.rank()]], [0, 1, 2], URGENT)
    assert {gradient.name: gradient.ready for gradient in plan.profile.gradients} == pytest.approx({"p0": 0.2, "p1": 0.3, "p2": 0.0})
    dist.destroy_process_group(group)


def test_the_first_plan_is_made_of_the_iterations_of_the_warm_up_without_the_very_first():
    """That one allocates memory, and compiles."""
    made, plan = [], SimpleNamespace(profile=None)
    exchange = SimpleNamespace(
        recording=True,
        samples=[],
        rounds=SimpleNamespace(number=0),
        synchronize=lambda: None,
        finish=lambda: None,
        install=lambda plan: None,
        waiting=SimpleNamespace(blocked=lambda what: nullcontext()),
        habits=None,
        tracked=[],
        last_uses=[],
    )
    planning = SimpleNamespace(way=lambda habits: URGENT, learn=lambda samples, urgency, way: made.append(list(samples)) or plan)
    learner = Learner(exchange, planning, Config(warmup=3), None, plan)
    for number in range(1, 5):
        assert not made and exchange.recording
        exchange.rounds.number = number
        exchange.samples.append([float(number)])
        learner.round_ends()
    assert made == [[[2.0], [3.0], [4.0]]] and learner.plans == 1 and not exchange.recording
