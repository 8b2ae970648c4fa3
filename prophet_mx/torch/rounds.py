"""Rounds of reductions: who contributes what, and whose sum is there.

A *round* is one pass through the order of units. Each backward pass that is reduced is one round, on every rank; a parameter contributes
to a round once. So the ranks start the same collectives in the same order, however their backward passes are timed. There is no barrier
between rounds. :class:`~prophet_mx.torch.reducer.Reducer` starts the collectives, and knows units alone.

In a round *in halves* (planning/owners.py) most units take two collectives, of which the first brings the sum to one rank only.
"""

from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from ..errors import CollectiveError
from ..monitoring.rounds import RoundCounters, UnitFacts
from ..planning.rounds import RoundPlan
from .flat import lay_out, lies_otherwise
from .guards import plainly
from .norms import Norms
from .reducer import Reducer
from .roles import Owner
from .strategies import OUTSTANDING, OUTSTANDING_HALVES, AllReduce, FromOwner, Strategy, ToOwner, payload
from .streams import Streams
from .tracked import IDLE, STEPPING, Tracked
from .waiting import Waiting

LISTED = 8  # parameters in a message


class Channel(NamedTuple):
    """What the collectives of one optimizer go through, and who is told of them.

    Attributes
    ----------
    strategy : starts them, and awaits them; rounds in halves are made of it.
    waiting : the lock, and the error.
    traffic : is told what happens to each unit.
    streams : those of the accelerator that the parameters are on, None for the CPU.
    unused : whether some parameters may have no gradient in a round (``find_unused_parameters``).
    another_group : makes a group of gloo with the same ranks, on all of them at once.
    """

    strategy: AllReduce
    waiting: Waiting
    traffic: RoundCounters
    streams: Optional[Streams]
    unused: bool
    another_group: Callable[[], dist.ProcessGroup]


class Rounds:
    """The sums of all parameters of one optimizer. Everything but :meth:`_landed` runs in the user's threads.

    Parameters
    ----------
    tracked : the parameters, in the order of the model.
    channel : of the optimizer.
    summed : called with a parameter whose sum is there, under the lock, in the landing thread.
    owner : releases a parameter whose update has to be done first, in the user's thread.
    """

    def __init__(self, tracked: List[Tracked], channel: Channel, summed: Callable[[Tracked], None], owner: Owner) -> None:
        self.tracked = tracked
        self.number = self.count = 0  # the round, and the parameters that have contributed to it
        self._strategy, self._waiting, self._traffic, self._streams, self.unused, self._another_group = channel
        self._summed, self._owner = summed, owner
        self._absent: List[Tracked] = []  # those that wait for the answers under way
        self._answered = True  # no answers are under way: _absent and _used may change
        self.norms: Optional[Norms] = None  # of a round in halves
        self._norms_group: Optional[dist.ProcessGroup] = None  # in that of the gradients, norms would wait for second halves under way
        self._used = torch.zeros(0)  # the ranks' answers
        self._tags = 0  # of halves, in all plans so far
        self._reducer: Optional[Reducer] = None

    def install(self, plan: RoundPlan) -> None:
        """Take a plan: the flat buffers, and the threads that reduce them. Nothing is under way."""
        if self._reducer is not None:
            self._reducer.stop(60.0)
            self._vacate()
        units, order = [unit.slices for unit in plan.units], list(plan.order)
        params = [tracked.param for tracked in self.tracked]
        ranges, views = lay_out(plan.units, [param.detach() for param in params])
        self._members: List[List[Tracked]] = [[self.tracked[index] for index, _, _ in slices] for slices in units]
        places: List[List[int]] = [[] for _ in self.tracked]
        for unit, members in enumerate(self._members):
            for tracked in members:
                places[tracked.index].append(unit)
        for tracked, view in zip(self.tracked, views):
            tracked.place(view, places[tracked.index], plan.urgency[tracked.index])
        self._missing = [len(members) for members in self._members]
        strategies: List[Strategy] = [self._strategy] * len(units)
        self._second: Dict[int, int] = {}  # by unit: the number of its second half
        self._steps = range(0)  # the numbers of those to the norms
        self.norms, self._answers_unit = None, -1
        if plan.owners:
            ranges, strategies = self._in_halves(plan, ranges)
            order = [step for number in order for step in (self._steps if number == self._steps[0] else [number])]
        self._units_of_second = {half: unit for unit, half in self._second.items()}
        facts = self._facts(plan.steps(), ranges, strategies)
        if self.unused:
            self._used = torch.zeros(len(params), dtype=torch.int32, device=params[0].device)
            self._answers_unit = len(ranges)
            # Before the norms: who clips asks first which parameters were used.
            order.insert(order.index(self._steps[0]) if plan.owners else len(order), self._answers_unit)
            ranges, strategies = [*ranges, self._used], [*strategies, self._strategy]
            facts.append(UnitFacts((), self._used.nbytes, len(params), -1))
        self._traffic.plan(facts, plan.cost.rate if plan.cost else 0.0)
        if self._streams is not None:
            self._streams.settle()  # the flat buffers are there for all streams
        self._reducer = Reducer(
            strategies,
            ranges,
            order,
            self._traffic,
            self._landed,
            self._waiting.fail,
            OUTSTANDING_HALVES if plan.owners else OUTSTANDING,
            self._streams,
            self._written,
        )

    def _vacate(self) -> None:
        """Give the old flat buffers back: there is never memory for two of them, and for what the program holds of one."""
        self.free()
        for tracked in self.tracked:
            tracked.vacate()

    def _in_halves(self, plan: RoundPlan, ranges: List[torch.Tensor]) -> Tuple[List[torch.Tensor], List[Strategy]]:
        """What is reduced in which way: the units, the second halves, and the exchange of norms."""
        group = self._strategy.group
        strategies: List[Strategy] = [self._strategy] * len(ranges)
        second: List[Strategy] = []
        base, self._tags = self._tags, self._tags + 2 * len(ranges)
        for unit, owner in enumerate(plan.owners):
            if owner is not None:
                self._second[unit] = len(ranges) + len(second)
                half = FromOwner(self._strategy, owner, base + self._second[unit])
                strategies[unit] = ToOwner(self._strategy, owner, base + unit, half)
                second.append(half)
        self._sums_here = [owner in (None, group.rank()) for owner in plan.owners]  # by unit
        self._units_here = [sum(self._sums_here[unit] for unit in tracked.units) for tracked in self.tracked]
        self._unsummed = list(self._units_here)  # those that are to come, by parameter
        if self._norms_group is None:
            with self._waiting.blocked("the other ranks, before they exchange norms"):
                self._norms_group = self._another_group()
        self.norms = Norms(plan, ranges, [tracked.param.numel() for tracked in self.tracked], self._norms_group)
        every = [*ranges, *(ranges[unit] for unit in self._second)]
        self._steps = range(len(every), len(every) + len(self.norms.units))
        return [*every, *self.norms.units], [*strategies, *second, *self.norms.strategies]

    def _facts(self, steps: Dict[str, int], ranges: List[torch.Tensor], strategies: List[Strategy]) -> List[UnitFacts]:
        members = [*self._members, *(self._members[unit] for unit in self._second)]
        members += [[]] * (len(ranges) - len(members))  # the norms
        return [
            UnitFacts(
                tuple(each.index for each in some),
                payload(strategy, unit),
                min((each.urgency for each in some), default=len(self.tracked)),
                max((steps.get(each.name, -1) for each in some), default=-1),
            )
            for some, unit, strategy in zip(members, ranges, strategies)
        ]

    def observed_rate(self) -> Optional[float]:
        """Bytes/s of payload that the job's own collectives got, where they had nothing to wait for here."""
        return self._reducer.observed_rate() if self._reducer is not None else None

    def stop(self, patience: float) -> bool:
        """End the threads; False if they have not ended within ``patience`` seconds."""
        return self._reducer is None or self._reducer.stop(patience)

    def free(self) -> None:
        """After :meth:`stop`: forget all units."""
        self._reducer, self.norms, self._used = None, None, torch.zeros(0)

    # -- contributions -----------------------------------------------------------------------------------------------------

    def contribute(self, tracked: Tracked, gradient: List[torch.Tensor], filled: bool = False) -> None:
        """Take this rank's gradient; its units may go when they are complete. With the guards off.

        ``gradient`` is as :meth:`Tracked.take` wants it. ``filled``: backward has not contributed for this parameter, so that it waits for
        the ranks' answers as well.
        """
        assert self._reducer is not None
        if gradient and (gradient[0].shape != tracked.view.shape or gradient[0].dtype != tracked.view.dtype):
            raise CollectiveError(
                f"parameter {tracked.name!r} has a gradient of {gradient[0].dtype} and shape {tuple(gradient[0].shape)}; when the "
                f"ScheduledOptimizer was made it had {tracked.view.dtype} and {tuple(tracked.view.shape)}. Make the optimizers after that"
            )
        if lies_otherwise(tracked.param, tracked.strides):  # an update, or a norm, would see gradient and parameter in two orders
            raise CollectiveError(
                f"parameter {tracked.name!r} has the strides {tracked.param.stride()}; when the ScheduledOptimizer was made it had "
                f"{tracked.strides}. Make the optimizers after that, as after model.to(memory_format=...)"
            )
        if self.norms is not None and not self.count:
            self._begin_norms(self.norms)
        tracked.take(gradient, self._strategy.scale, filled)
        # The landing thread counts down from the moment in which a unit is ready.
        tracked.contribute(self.number, filled, self._streams)
        self.count += 1
        for unit in tracked.units:
            self._missing[unit] -= 1
            if not self._missing[unit]:
                self._reducer.ready(unit)

    def _begin_norms(self, norms: Norms) -> None:
        self.await_norms()
        with self._waiting.condition:
            steps = norms.begin()
        self._go(steps)  # for these there is nothing to wait for on this rank

    def _go(self, steps: Sequence[int]) -> None:
        """These steps on the way to the norms may go."""
        assert self._reducer is not None
        for step in steps:
            self._reducer.ready(self._steps[step])

    def begin(self) -> None:
        """A round begins, in which some parameters may have no gradient here and still get one from other ranks."""
        if self.unused:
            for tracked in self.tracked:
                if tracked.stage == IDLE:
                    tracked.expect()

    def end(self) -> None:
        """All that backward had to contribute has been contributed. CollectiveError if a parameter had no gradient, unless that is
        allowed."""
        if self.count < len(self.tracked) and not self.unused:
            raise self._missing_gradients()
        if self.unused:
            self._fill()
        self.number += 1
        self.count = 0

    def ready_times(self) -> List[Optional[float]]:
        """When each gradient of the last round was ready (seconds), None for those that were not used here."""
        # On an accelerator they are ready when it has made them, not when the hook of each ran.
        seconds = None if self._streams is None else self._streams.seconds([tracked.mark for tracked in self.tracked])
        moments = seconds or [tracked.ready for tracked in self.tracked]
        return [None if tracked.absent else moment for tracked, moment in zip(self.tracked, moments)]

    def _missing_gradients(self) -> CollectiveError:
        names = [tracked.name for tracked in self.tracked if tracked.round != self.number]
        listed = ", ".join(names[:LISTED]) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")
        return CollectiveError(
            f"backward gave no gradient for {listed}, which other ranks wait for. If parameters are not used in every iteration, pass "
            "find_unused_parameters=True; if backward raised an error, the job cannot continue"
        )

    @property
    def filled(self) -> List[Tracked]:
        """The parameters of the last round for which its end has contributed."""
        return self._absent

    def _fill(self) -> None:
        """Contribute for the parameters that backward has not reached, and tell all ranks which these are."""
        self.await_answers()
        self._absent = [tracked for tracked in self.tracked if tracked.round != self.number]
        used = torch.ones(len(self.tracked), dtype=torch.int32)
        for tracked in self._absent:
            self._fill_one(tracked, used)
        self._used.copy_(used)
        self._answered = False
        if self._streams is not None:
            self._streams.settle()  # it is small
        assert self._reducer is not None
        self._reducer.ready(self._answers_unit)

    def _fill_one(self, tracked: Tracked, used: torch.Tensor) -> None:
        if tracked.stage == STEPPING:
            self._owner.release(tracked)
        self.await_sum(tracked)
        with plainly():
            self.contribute(tracked, tracked.present(), filled=True)
        used[tracked.index] = int(not tracked.absent)

    def _written(self, unit: int) -> None:
        """Return when the accelerator has written all gradients of this unit into it. In the thread that starts collectives."""
        for tracked in self._members[unit] if unit != self._answers_unit else ():
            tracked.mark.synchronize()

    # -- sums --------------------------------------------------------------------------------------------------------------

    def await_answers(self) -> None:
        """Return when the ranks' answers of the last round are there: nothing of that round is under way but sums."""
        self._waiting.until(lambda: self._answered, lambda: "all ranks' lists of the parameters they use")

    def await_norms(self) -> None:
        """Return when the norms of the last round are there, if it is in halves."""
        norms = self.norms
        if norms is not None:
            self._waiting.until(lambda: norms.there, lambda: "the norms of all gradients")

    def await_sum(self, tracked: Tracked) -> None:
        """Return when the sum of this parameter's gradients is there."""
        if tracked.unlanded:
            self._waiting.until(lambda: not tracked.unlanded, lambda: f"the sum of the gradients of {tracked.name!r}")

    def _landed(self, unit: int) -> None:
        """A unit, or a half of it, is reduced. In the landing thread."""
        if self.norms is not None and unit < len(self._members):
            self._summed_here(unit, self.norms)
            if unit in self._second:
                return
        if self.norms is not None and unit in self._steps:
            self._go(self.norms.landed(unit - self._steps[0]))
        with self._waiting.condition:
            if unit == self._answers_unit:
                self._answers_landed(self._used.tolist())
            elif unit not in self._steps:
                unit = unit if unit < len(self._members) else self._units_of_second[unit]
                self._missing[unit] = len(self._members[unit])
                for tracked in self._members[unit]:
                    if tracked.land():
                        self._summed(tracked)
            self._waiting.condition.notify_all()

    def _answers_landed(self, answers: List[int]) -> None:
        for tracked in self._absent:
            if tracked.land(used=bool(answers[tracked.index])):
                self._summed(tracked)
        self._answered = True

    def _summed_here(self, unit: int, norms: Norms) -> None:
        """A unit of a round in halves has its sum on its owner. The landing thread alone reads and writes ``_unsummed``."""
        assert self._reducer is not None
        if unit in self._second:
            self._reducer.ready(self._second[unit])
        for tracked in self._members[unit] if self._sums_here[unit] else ():
            self._unsummed[tracked.index] -= 1
            if not self._unsummed[tracked.index]:
                self._unsummed[tracked.index] = self._units_here[tracked.index]
                with plainly():
                    steps = norms.note(tracked)
                self._go(steps)
