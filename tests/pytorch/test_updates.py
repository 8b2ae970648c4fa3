"""The thread that updates parameters: in which order, and once each."""

import random

import torch
from torch import nn

from prophet_mx import Config
from prophet_mx.monitoring.rounds import RoundCounters
from prophet_mx.torch.tracked import Tracked
from prophet_mx.torch.updates import BATCH_PARAMETERS, Updater
from prophet_mx.torch.waiting import Waiting


class Noted:
    """A ``step()`` that notes which parameters it updates."""

    marks = ()

    def __init__(self):
        self.urgencies = []

    def apply(self, members):
        self.urgencies += [tracked.urgency for tracked in members]


def test_what_forward_needs_first_is_updated_first_and_each_parameter_once():
    """All sums are there at once, and some are told twice, as after a signal."""
    count, waiting, step = 2 * BATCH_PARAMETERS + 5, Waiting(Config(stall_warn="off"), 0), Noted()
    updater = Updater(waiting, RoundCounters([]), None)
    every = []
    for index, urgency in enumerate(random.Random(1).sample(range(count), count)):
        tracked = Tracked(nn.Parameter(torch.ones(3)), f"p{index}", index)
        tracked.place(torch.zeros(3), [0], urgency)
        tracked.watch(None)  # nothing here asks for what others have to do
        tracked.contribute(0, False, None)
        tracked.land()
        every.append(tracked)
    with waiting.condition:
        for tracked in every:
            tracked.ask(step, tracked.view)
        for tracked in [*every, *every[:7]]:
            updater.ripe(tracked)
    waiting.until(lambda: all(tracked.update is None for tracked in every), lambda: "the updates")
    assert updater.stop(10) and waiting.failure is None
    assert step.urgencies == list(range(count))
