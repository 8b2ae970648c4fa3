"""From gradients to updates: what backward, ``step()`` and ``zero_grad()`` do to all parameters, and who waits for what. The states of one
parameter, and what changes them, are in tracked.py."""

import logging
import time
from typing import Any, List, Optional, Sequence, Tuple

import torch

from ..errors import CollectiveError
from ..planning.rounds import RoundPlan
from . import refusals
from .guards import plainly
from .habits import Habits, all_read
from .homes import Homes
from .hooks import untraced
from .passes import Passes, in_no_pass
from .rounds import Channel, Rounds
from .tracked import CLEARED, HIDDEN, IDLE, STEPPING, SUMMING, Tracked
from .updates import Update, Updater

logger = logging.getLogger("prophet_mx")


class Exchange:
    """The state of all parameters of one model. Everything but :meth:`_summed` runs in the user's threads.

    Parameters
    ----------
    tracked : the parameters, in the order of the model.
    channel : for their collectives.
    """

    def __init__(self, tracked: Sequence[Tracked], channel: Channel) -> None:
        self.tracked = list(tracked)
        self.waiting = channel.waiting
        self._streams = channel.streams
        self.waiting.watch()
        self.updater = Updater(channel.waiting, channel.traffic, channel.streams)
        self.rounds = Rounds(self.tracked, channel, self._summed, self)
        self.paused = False  # DistributedDataParallel reduces all gradients, and parameters are plain
        self.reducing = True  # False: what backward adds stays here (no_sync)
        self.recording = True  # there is no plan yet: note when gradients are ready and which parameters are used first
        self.sampling = False  # note when gradients are ready, to see whether that has changed
        self.samples: List[List[Optional[float]]] = []
        self.uses: List[Tracked] = []  # by forward, in order
        self.last_uses: List[Tracked] = []  # the same, of the iteration before
        self.homes = Homes()
        self.unseen: List[Tracked] = []  # parameters that no guard saw being used, and that have no home
        self._gradients_were_read = False
        self.habits = Habits()
        self.stepped_here = False  # the last step() has done all updates itself
        self._kept = self._settling = False  # some parameter has a kept gradient; it gets its sum when this backward is over
        self._passes = Passes()  # where some may give fewer gradients

    # -- the plan ----------------------------------------------------------------------------------------------------------

    def install(self, plan: RoundPlan) -> None:
        """Take a plan, at the end of ``step()``. All ranks take the same one after the same round."""
        self.finish()
        self.rounds.install(plan)

    def finish(self) -> None:
        """Wait until nothing is under way: all updates are done, and sums that nobody has asked for are in ``grad``."""
        self.synchronize()
        self.release_all()
        for tracked in self.tracked:
            if tracked.hidden:
                self.expose(tracked)
            self.rounds.await_sum(tracked)
        self.rounds.await_answers()
        self.rounds.await_norms()

    def pause(self) -> None:
        """Wait until nothing is under way, and make all parameters plain, also those that another optimizer updates."""
        self.finish()
        for tracked in self.tracked:
            if tracked.stage == SUMMING:
                tracked.settle()
        self.paused = True

    # -- backward ----------------------------------------------------------------------------------------------------------

    def contribute(self, tracked: Tracked) -> None:
        """Backward has added to ``grad`` of this parameter. Called by autograd, perhaps in a thread of its own."""
        if self.paused:
            return
        tracked.reach(time.perf_counter())
        if tracked.stage == STEPPING:
            self._was_not_seen(tracked)
        if not self.reducing:
            self._keep(tracked)
            return
        if tracked.round == self.rounds.number:
            self.end_round()
        if not self.rounds.count:
            self.rounds.begin()
        if self.rounds.unused:
            self._passes.note()
        self.rounds.await_sum(tracked)
        with plainly():
            gradient = self._local(tracked)
            if gradient and (gradient[0].layout is not torch.strided or torch.is_grad_enabled()):
                refusals.refuse_gradient(tracked.name, gradient[0])
            self.rounds.contribute(tracked, gradient)
        self._kept = self._kept or tracked.kept is not None
        if self._kept and not self._settling:
            self._settling = True
            torch.autograd.Variable._execution_engine.queue_callback(self._settle_kept)  # type: ignore[attr-defined]

    @untraced  # as backward calls it
    def _settle_kept(self) -> None:
        """Backward is over: gradients of before it that the program still holds get the sums, as aliases of them are read unseen."""
        self._settling = False
        if self.in_backward() and not self.rounds.unused:
            return  # another backward of this round follows
        self._kept = False
        self.end_round()
        for tracked in self.tracked:
            if tracked.kept is not None:
                self.expose(tracked)

    def _local(self, tracked: Tracked) -> List[torch.Tensor]:
        """What this rank contributes, as :meth:`Tracked.take` wants it: nothing if a hook of the program has dropped it. With the guards
        off."""
        found = tracked.param.grad if tracked.stage == IDLE else tracked.merged()
        return [] if found is None else [found]

    def _keep(self, tracked: Tracked) -> None:
        """Backward within ``no_sync``: the gradient stays here."""
        if tracked.round == self.rounds.number and (self.in_backward() or self.rounds.unused):  # its sum may wait for the round's end
            self.end_round()
        if tracked.stage == SUMMING:
            self.rounds.await_sum(tracked)
            with plainly():
                merged = tracked.merged()
            tracked.hold(merged)

    def _was_not_seen(self, tracked: Tracked) -> None:
        """Backward gives a gradient for a parameter that nobody was seen to use since the last ``step()``."""
        if not self.recording:
            refusals.refuse_unseen(tracked.name)
        if not self.homes.take(tracked):
            self.unseen.append(tracked)  # until there is a plan, step() waits for all updates
        with plainly():
            fresh = tracked.param.grad
        self.release(tracked)
        tracked.param.grad = fresh

    # -- rounds ------------------------------------------------------------------------------------------------------------

    def end_round(self) -> None:
        """The backward pass is over. CollectiveError if it raised, or if a parameter had no gradient, unless that is allowed."""
        if not self.rounds.count:
            return
        if in_no_pass():
            self._passes.end(self.in_backward())
        self.rounds.end()
        for tracked in self.rounds.filled if self.rounds.unused else ():
            if tracked.kept is not None:  # an alias of it would be read unseen
                self.expose(tracked)
        if self.recording or self.sampling:
            self.samples.append(self.rounds.ready_times())

    def begin_forward(self) -> None:
        """The model's forward begins: backward has contributed all its gradients."""
        self.end_round()
        self._settling = False
        with plainly():
            for tracked in self.tracked:
                tracked.forward_begins()
        self.uses.clear()
        self.homes.begin_forward()
        for tracked in self.unseen:
            self.release(tracked)

    # -- waiting -----------------------------------------------------------------------------------------------------------

    def _summed(self, tracked: Tracked) -> None:
        """The sum of a parameter is there. In the landing thread, which holds the lock."""
        if tracked.update is not None:
            self._ripe(tracked)

    def _ripe(self, tracked: Tracked) -> None:
        """The sum of a parameter whose update is asked for is there. The lock is held."""
        if tracked.absent and tracked.gradient is tracked.view and not tracked.restore():  # no rank has used it
            tracked.cancel()
            return
        self.updater.ripe(tracked)

    def say_ripe(self, tracked: Sequence[Tracked]) -> None:
        """Say again, under the lock, which are ripe: a signal's handler may wait for one that the interrupted step() has not told yet."""
        for each in tracked:
            if each.update is not None and not each.unlanded:
                self._ripe(each)

    def release(self, tracked: Tracked) -> None:
        """Return when the update of this parameter is done; it is plain then. In the thread that uses it."""
        with self.waiting.condition:  # other threads, and signals' handlers, may do the same
            if tracked.update is not None:
                self.say_ripe([tracked])
                self.waiting.until(lambda: tracked.update is None, lambda: f"the gradients of {tracked.name!r} of all ranks")
            if tracked.stage != STEPPING:
                return
            tracked.release()
        if self.recording:
            self.uses.append(tracked)

    def expose(self, tracked: Tracked) -> None:
        """Return when the sum is there, in the parameter's own ``grad``: somebody reads it before ``step()``."""
        self._read_after_backward(tracked)
        if tracked.unlanded and not self._gradients_were_read and not self.recording:
            self._gradients_were_read = True
            logger.info("gradients are read before step(), as for clipping: each iteration waits there until all sums have arrived")
        self.rounds.await_sum(tracked)
        tracked.show()

    def _read_after_backward(self, tracked: Tracked) -> None:
        if self.rounds.count:
            if not in_no_pass():
                if tracked.round == self.rounds.number:
                    raise CollectiveError(f"grad of {tracked.name!r} cannot be read during backward: other ranks may not have theirs yet")
                return  # a hook of the program that comes before ours
            if self.rounds.count < len(self.tracked) or self.rounds.unused:
                self.end_round()

    def fill(self) -> None:
        """If backward is over, and may not have reached all parameters, so is the round: other ranks may have used them, and second halves
        wait for all ranks' answers."""
        if self.rounds.unused and self.rounds.count and in_no_pass():
            self.end_round()

    def lends(self, tracked: Tracked) -> bool:
        """Whether ``clip_grad_norm_``, which reads this gradient, may have it before its sum is there."""
        self.habits.clipping = True
        if self.rounds.norms is None or tracked.slot != HIDDEN or tracked.kept is not None or tracked.factors:
            return False
        self._read_after_backward(tracked)
        self.end_round()  # the exchange of norms comes after the ranks' answers
        if tracked.absent:
            self.rounds.await_answers()
        return not tracked.absent

    def norm(self, tracked: Tracked) -> torch.Tensor:
        """The 2-norm of the sum of a gradient that is lent."""
        assert self.rounds.norms is not None
        self.rounds.await_norms()
        return self.rounds.norms.of(tracked)

    def await_gradient(self, tracked: Tracked) -> None:
        """Return when the sum and the update are done."""
        if tracked.stage == STEPPING:
            self.release(tracked)
        elif tracked.hidden:
            self.expose(tracked)
        self.rounds.await_sum(tracked)

    def gather(self, mine: Sequence[Tracked]) -> bool:
        """Return when the sums of these parameters are there, in their own ``grad``, and they are plain. False if none has a gradient."""
        self.waiting.check()
        self.end_round()
        for tracked in mine:
            if tracked.stage == STEPPING:
                self.release(tracked)
            elif tracked.stage == SUMMING:
                if tracked.hidden:
                    self.expose(tracked)
                tracked.settle()
        return any(tracked.param.grad is not None for tracked in mine)

    def under_way(self) -> bool:
        """Whether collectives have been started, or updates asked for, that are not done."""
        return any(tracked.update is not None or tracked.unlanded and self.rounds.number for tracked in self.tracked)

    def in_backward(self) -> bool:
        """Whether a backward pass has begun and not given all gradients: it is under way, it raised, or some parameters are not used."""
        return 0 < self.rounds.count < len(self.tracked)

    def incomplete(self) -> bool:
        """Whether the gradients of the last backward cannot be used: it has not given all, and is to give more, or it raised."""
        return self.in_backward() and (bool(self._passes) or not self.rounds.unused)

    def synchronize(self) -> None:
        """Return when all updates that ``step()`` has asked for are done."""
        with self.waiting.condition:
            self.say_ripe(self.tracked)
        self._await_updates(self.tracked)

    def _await_updates(self, some: Sequence[Tracked]) -> None:
        def pending() -> Optional[str]:
            return next((repr(tracked.name) for tracked in some if tracked.update is not None), None)

        self.waiting.until(lambda: pending() is None, lambda: f"the gradients of {pending() or 'a parameter'}")

    def settle(self) -> None:
        """Return when no sum is under way, unless backward has begun and is to give more gradients."""
        self.fill()
        if not self.in_backward() and in_no_pass():
            for tracked in self.tracked:
                self.rounds.await_sum(tracked)
            self.rounds.await_answers()

    def release_all(self) -> None:
        """All updates done, and all parameters that have no sum under way plain."""
        for tracked in self.tracked:
            self.release(tracked)

    # -- step and zero_grad ------------------------------------------------------------------------------------------------

    def step(self, optimizer: torch.optim.Optimizer, mine: Sequence[Tracked]) -> bool:
        """Ask for the updates of the optimizer's parameters that have a gradient; they happen as their sums arrive. False if none has one.

        Those by a tensor that the program has used are done on return, as it may write there. If the program has waited for all sums, all
        are done here: no thread takes over, and parameters are plain.
        """
        self.waiting.check()
        self.end_round()
        self.habits.step_begins(self.tracked)
        self.stepped_here = not self.recording and all_read(mine) and self._streams is None and not self.under_way()
        if self.stepped_here:
            found = self.gather(mine)
            with plainly():
                refusals.step_without_hooks(type(optimizer))(optimizer)
            return found
        update = Update(optimizer, None if self._streams is None else self._streams.marks())
        members: List[Tuple[Tracked, torch.Tensor]] = []
        for tracked in mine:
            gradient = self._gradient_for_step(tracked)
            if gradient is not None:
                members.append((tracked, gradient))
            elif tracked.stage == SUMMING:
                tracked.settle()
        if self.recording and self.uses:
            self.last_uses, self.uses = self.uses, []
        with self.waiting.condition:
            for tracked, gradient in members:
                tracked.ask(update, gradient)
                if tracked.update is not None and not tracked.unlanded:  # a signal's handler may have waited for it
                    self._ripe(tracked)
        self._await_updates([tracked for tracked, gradient in members if gradient is not tracked.view])
        return bool(members)

    def _gradient_for_step(self, tracked: Tracked) -> Optional[torch.Tensor]:
        """What the update is to use; None if ``grad`` is None."""
        if tracked.stage != IDLE and tracked.slot == CLEARED:
            return None
        if tracked.hidden:
            return tracked.view
        if tracked.stage == STEPPING:
            self.release(tracked)
        with plainly():
            return tracked.param.grad

    def clear(self, tracked: Tracked) -> None:
        """``grad`` is None from now on; an update under way still has it."""
        with self.waiting.condition:
            tracked.clear()

    def zero_grad(self, mine: Sequence[Tracked], set_to_none: bool) -> None:
        """As of an optimizer of these parameters, without waiting for updates."""
        self.end_round()
        if set_to_none:
            with self.waiting.condition:
                for tracked in mine:
                    tracked.clear()
            return
        for tracked in mine:
            with self.waiting.condition:
                later = tracked.zero_later()
            gradient: Any = None if later else tracked.param.grad
            if gradient is not None:
                with plainly():
                    gradient.zero_()

    # -- the end -----------------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """In a forked child: as after :meth:`ScheduledOptimizer.close`, but using a value that was not there at the fork is an error."""
        self.waiting.leave()
        for tracked in self.tracked:
            if tracked.update is not None or tracked.unlanded or tracked.stage == SUMMING and self.in_backward():
                continue
            if tracked.hidden:
                self.expose(tracked)
            tracked.leave()

    def close(self, patience: float) -> bool:
        """End the threads; False if they have not ended within ``patience`` seconds each."""
        ended = self.rounds.stop(patience)
        ended = self.updater.stop(patience) and ended
        self.waiting.close()
        return ended

    def free(self) -> None:
        """After :meth:`close`, once no parameter is scheduled: give the memory of the flat buffers back, but for what the program holds."""
        self.rounds.free()
        for tracked in self.tracked:
            tracked.forget()
