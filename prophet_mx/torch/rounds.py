"""Rounds of reductions: who contributes what, and whose sum is there.

A *round* is one pass through the order of units. Each backward pass that is reduced is one round, on every rank; a parameter contributes
to a round once. So the ranks issue the same collectives in the same order, however their backward passes are timed.
"""

from typing import Callable, Dict, List, NamedTuple, Optional

import torch
import torch.distributed as dist

from ..errors import CollectiveError
from ..monitoring.rounds import RoundCounters, UnitFacts
from .agreement import Plan
from .guards import Owner, give_own_memory, guard, guard_gradient, held_elsewhere, lent, plainly, unguard_gradient
from .reducer import Reducer, lay_out
from .streams import Streams
from .tracked import IDLE, KEPT, STEPPING, SUMMING, Tracked
from .waiting import Waiting

LISTED = 8  # parameters in a message


class Channel(NamedTuple):
    """What the collectives of one optimizer go through, and who is told of them.

    Attributes
    ----------
    group : the process group that carries them, and nothing else meanwhile.
    waiting : the lock, and the error.
    traffic : is told what happens to each unit.
    streams : those of the accelerator that the parameters are on, None for the CPU.
    unused : whether some parameters may have no gradient in a round (``find_unused_parameters``).
    """

    group: dist.ProcessGroup
    waiting: Waiting
    traffic: RoundCounters
    streams: Optional[Streams]
    unused: bool


class Rounds:
    """The sums of all parameters of one optimizer. Everything but :meth:`_landed` runs in the user's threads.

    Parameters
    ----------
    tracked : the parameters, in the order of the model.
    channel : of the optimizer.
    summed : called with a parameter whose sum is there, under the lock, in the landing thread.
    owner : of the guards; releases a parameter whose update has to be done first, in the user's thread.
    """

    def __init__(self, tracked: List[Tracked], channel: Channel, summed: Callable[[Tracked], None], owner: Owner) -> None:
        self.tracked = tracked
        self.number = self.count = 0  # the round, and the parameters that have contributed to it
        self._group, self._waiting, self._traffic, self._streams, self.unused = channel
        self._summed, self._owner = summed, owner
        self._scale = 1.0 / channel.group.size()
        self._absent: List[Tracked] = []  # those that wait for the answers under way
        self._answered = True  # no answers are under way: _absent and _used may change
        self._reducer: Optional[Reducer] = None

    def install(self, plan: Plan) -> None:
        """Take a plan: the flat buffers, and the threads that reduce them. Nothing is under way."""
        if self._reducer is not None:
            self._reducer.stop(60.0)
        units, order = plan.units, list(plan.order)
        params = [tracked.param for tracked in self.tracked]
        ranges, views = lay_out(units, [param.detach() for param in params])
        self._members: List[List[Tracked]] = [[self.tracked[index] for index, _, _ in pieces] for pieces in units]
        for tracked, view in zip(self.tracked, views):
            if tracked.view is not tracked.param:
                self._free(tracked)
                unguard_gradient(tracked)
            tracked.view, tracked.units = view, []
            guard_gradient(tracked, self._owner)
        for unit, pieces in enumerate(units):
            for index, _, _ in pieces:
                self.tracked[index].units.append(unit)
        self._missing = [len(members) for members in self._members]
        facts = self._facts(plan.steps(), ranges)
        if self.unused:
            self._used = torch.zeros(len(params), dtype=torch.int32, device=params[0].device)
            ranges, order = [*ranges, self._used], [*order, len(units)]
            self._members.append([])
            facts.append(UnitFacts((), self._used.nbytes, len(params), -1))
        self._traffic.plan(facts, plan.cost.rate if plan.cost else 0.0)
        if self._streams is not None:
            self._streams.settle()  # the flat buffers are there for all streams
        self._reducer = Reducer(
            self._group, ranges, order, self._traffic, self._landed, self._waiting.fail, streams=self._streams, written=self._written
        )

    def _facts(self, steps: Dict[str, int], ranges: List[torch.Tensor]) -> List[UnitFacts]:
        return [
            UnitFacts(
                tuple(each.index for each in members),
                units.nbytes,
                min(each.urgency for each in members),
                max(steps.get(each.name, -1) for each in members),
            )
            for members, units in zip(self._members, ranges)
        ]

    def observed_rate(self) -> Optional[float]:
        """Bytes/s of payload that the job's own collectives got, where they had nothing to wait for here."""
        return self._reducer.observed_rate() if self._reducer is not None else None

    def stop(self, patience: float) -> bool:
        """End the threads; False if they have not ended within ``patience`` seconds."""
        return self._reducer is None or self._reducer.stop(patience)

    # -- contributions -----------------------------------------------------------------------------------------------------

    def contribute(self, tracked: Tracked, gradient: List[torch.Tensor], besides: int = 0) -> None:
        """Take this rank's gradient; its units may go when they are complete. With the guards off.

        ``gradient``: in a list of its own, which has the only reference here, so that others can be counted; an empty list for zeros.
        ``besides``: units that it is not in and that it waits for as well.
        """
        apart = not gradient or gradient[0] is not tracked.view
        if apart:
            self._free(tracked)
        if not gradient:
            tracked.view.zero_()
        elif apart:
            torch.mul(gradient[0], self._scale, out=tracked.view)
        else:
            tracked.view.mul_(self._scale)
        tracked.param.grad = None  # so that nothing in C++ adds to what is being reduced
        if gradient and apart and held_elsewhere(gradient, tracked):
            tracked.kept = gradient[0]
        self._hand_over(tracked, besides)

    def _free(self, tracked: Tracked) -> None:
        """The flat buffer may be written: what the program still holds of the last sum gets memory of its own."""
        if lent(tracked) or tracked.param.grad is tracked.view:
            give_own_memory(tracked, self._owner)

    def sum_of(self, tracked: Tracked) -> torch.Tensor:
        """The tensor that is to be ``grad`` now that the sum is there: the one that the program holds, or the view. With the guards off."""
        kept, tracked.kept = tracked.kept, None
        return tracked.view if kept is None else kept.copy_(tracked.view)

    def _hand_over(self, tracked: Tracked, besides: int) -> None:
        """The contribution is in the flat buffer. The landing thread counts down from the moment in which a unit is ready."""
        assert self._reducer is not None
        if self._streams is not None:
            tracked.mark = self._streams.mark(tracked.param.device, tracked.mark)
        tracked.exposed, tracked.zero, tracked.touched, tracked.absent = False, KEPT, False, False
        guard(tracked, SUMMING)
        tracked.round = self.number
        self.count += 1
        tracked.unlanded = len(tracked.units) + besides
        for unit in tracked.units:
            self._missing[unit] -= 1
            if not self._missing[unit]:
                self._reducer.ready(unit)

    def begin(self) -> None:
        """A round begins, in which some parameters may have no gradient here and still get one from other ranks."""
        if self.unused:
            for tracked in self.tracked:
                if tracked.stage == IDLE:
                    tracked.exposed = True
                    guard(tracked, SUMMING)

    def end(self) -> None:
        """All that backward had to contribute has been contributed. CollectiveError if a parameter had no gradient, unless that is
        allowed."""
        if self.count < len(self.tracked) and not self.unused:
            raise self._missing_gradients()
        if self.unused:
            self._fill()
        self.number += 1
        self.count = 0

    def _missing_gradients(self) -> CollectiveError:
        names = [tracked.name for tracked in self.tracked if tracked.round != self.number]
        listed = ", ".join(names[:LISTED]) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")
        return CollectiveError(
            f"backward gave no gradient for {listed}, which other ranks wait for. If parameters are not used in every iteration, pass "
            "find_unused_parameters=True; if backward raised an error, the job cannot continue"
        )

    def _fill(self) -> None:
        """Contribute for the parameters that backward has not reached, and tell all ranks which these are."""
        self._waiting.until(lambda: self._answered, lambda: "all ranks' lists of the parameters they use")
        self._absent = [tracked for tracked in self.tracked if tracked.round != self.number]
        used = torch.ones(len(self.tracked), dtype=torch.int32)
        for tracked in self._absent:
            self._fill_one(tracked, used)
        self._used.copy_(used)
        self._answered = False
        if self._streams is not None:
            self._streams.settle()  # it is small
        assert self._reducer is not None
        self._reducer.ready(len(self._members) - 1)

    def _fill_one(self, tracked: Tracked, used: torch.Tensor) -> None:
        if tracked.stage == STEPPING:
            self._owner.release(tracked)
        self.await_sum(tracked)
        touched = tracked.touched
        with plainly():
            found = [tracked.param.grad] if tracked.exposed or tracked.stage == IDLE else []
            self.contribute(tracked, [each for each in found if each is not None], 1)  # 1: the answers of all ranks
        used[tracked.index] = int(touched)
        tracked.absent = not touched

    def _written(self, unit: int) -> None:
        """Return when the accelerator has written all gradients of this unit into it. In the thread that starts collectives."""
        for tracked in self._members[unit]:
            tracked.mark.synchronize()

    # -- sums --------------------------------------------------------------------------------------------------------------

    def await_sum(self, tracked: Tracked) -> None:
        """Return when the sum of this parameter's gradients is there."""
        if tracked.unlanded:
            self._waiting.until(lambda: not tracked.unlanded, lambda: f"the sum of the gradients of {tracked.name!r}")

    def _landed(self, unit: int) -> None:
        """A unit is reduced. In the landing thread."""
        answers = self._used.tolist() if self.unused and unit == len(self._members) - 1 else None
        with self._waiting.condition:
            members = self._members[unit] if answers is None else self._absent
            if answers is None:
                self._missing[unit] = len(members)
            for tracked in members:
                if answers is not None and answers[tracked.index]:
                    tracked.absent = False
                tracked.unlanded -= 1
                if not tracked.unlanded:
                    self._summed(tracked)
            self._answered = self._answered or answers is not None
            self._waiting.condition.notify_all()
