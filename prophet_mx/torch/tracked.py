"""One parameter whose gradient is reduced: its states, and all that changes them. Only ``group`` is written elsewhere.

``stage`` says what is under way:

=========== ========================================================= ===========================================================
stage       meaning                                                   the parameter
=========== ========================================================= ===========================================================
IDLE        nothing is under way                                      is plain
SUMMING     backward has made the gradient, its sum may not be there  ``grad`` waits for the sum
STEPPING    ``step()`` was called, nobody has used it since, and the  every use waits for the update
            update may not be done
=========== ========================================================= ===========================================================

``slot`` says what ``param.grad`` is while something is under way:

=========== =====================================================================================================================
HIDDEN      the sum, which is in the flat buffer only: the parameter's own slot is empty, so that nothing in C++ adds to it
OWN         what the parameter's own slot holds, or gets with the update
CLEARED     None, by ``zero_grad()`` or the program
ZEROED      zeros once the update is done, by ``zero_grad(set_to_none=False)``
=========== =====================================================================================================================

:data:`TRANSITIONS` has every change of stage. A method that makes one of them names it; each says what ``slot`` becomes, and who calls.
"The lock" is that of ``Waiting``. A method that does not speak of it is called in the user's threads (the main thread, and autograd's).
"""

import sys
import weakref
from typing import Any, Dict, List, Optional, Sequence

import torch
from torch import nn

from .flat import ALONE, held_elsewhere, view_like
from .guards import GuardedParameter, guard_gradient, plainly, register, unguard_gradient, unregister
from .roles import Owner, Step
from .streams import Streams

IDLE, SUMMING, STEPPING = range(3)
HIDDEN, OWN, CLEARED, ZEROED = range(4)

TRANSITIONS: Dict[str, Dict[int, int]] = {
    "expect": {IDLE: SUMMING},  # a round begins in which other ranks may have a gradient for it
    "contribute": {IDLE: SUMMING, SUMMING: SUMMING},  # this rank's gradient is in the flat buffer
    "ask": {IDLE: STEPPING, SUMMING: STEPPING},  # step() with a gradient
    "settle": {SUMMING: IDLE},  # step() without one, or one that updates all parameters itself; or a compiled graph
    "release": {STEPPING: IDLE},  # the first use after the update
    "leave": {IDLE: IDLE, SUMMING: IDLE, STEPPING: IDLE},  # it is no longer scheduled
}
_CLASSES = {IDLE: nn.Parameter, SUMMING: GuardedParameter, STEPPING: GuardedParameter}


class Tracked:
    """One parameter.

    Attributes
    ----------
    param, name, index, bytes : the parameter, its name in the model, its place in ``model.parameters()``, and its size.
    urgency : 0 for the parameter that forward needs first.
    group : index of its group in the optimizer that has it; None if none does.
    stage, slot : see the top of this module.
    strides : those that it had when the ScheduledOptimizer was made.
    view : of its range in the flat buffer, in the parameter's shape and strides. Written by the contributing thread, then by collectives.
        It may be the parameter's ``grad``, as a guarded gradient; the program's first use of it gives it memory of its own.
    units : indices of the units that its elements are in.
    kept : a tensor that was ``grad`` before backward and that the program still holds: at the end of
        backward the sum goes into it, as with DDP. None at other times.
    round : the round of reductions that it contributed to last.
    unlanded : units, and the ranks' answers, that have not come back. Set by the contributing thread, counted down by the landing one.
    ready : seconds (``time.perf_counter``) at which its gradient was ready last.
    mark : when its gradient was in the flat buffer, in the stream that wrote it; None on the CPU.
    touched : backward has reached it since the last round (also within ``no_sync``).
    absent : it was not used here in this round, so that the ranks' answers tell whether it was used at all.
    earlier : while it is absent, the gradient of before this round, which stays if no rank has used it. None if there was none.
    update : the ``step()`` whose update is still to be done; None where none is. Written under the lock.
    gradient : the tensor that the update takes as gradient; ``view`` unless the program has set another. None before ``step()``.
    factors : what the sum is to be multiplied by when it is there, one after the other. Nothing else multiplies it earlier.
    """

    # fmt: off
    __slots__ = (
        "param", "name", "index", "bytes", "urgency", "group", "stage", "slot", "strides", "view", "units", "kept",
        "round", "unlanded", "ready", "mark", "touched", "absent", "earlier", "update", "gradient", "factors", "_before", "_owner",
    )
    # fmt: on

    def __init__(self, param: nn.Parameter, name: str, index: int) -> None:
        self.param, self.name, self.index = param, name, index
        self.bytes = param.numel() * param.element_size()
        self.urgency = index
        self.group: Optional[int] = None
        self.stage, self.slot = IDLE, OWN
        self.strides = param.stride()
        self.view: torch.Tensor = param
        self.units: List[int] = []
        self.kept: Optional[torch.Tensor] = None
        self.round = -1
        self.unlanded = 0
        self.ready = 0.0
        self.mark: Any = None
        self.touched = self.absent = False
        self.earlier: Optional[torch.Tensor] = None
        self.update: Optional[Step] = None
        self.gradient: Optional[torch.Tensor] = None
        self.factors: List[Any] = []
        self._before: Optional[weakref.ref[torch.Tensor]] = None
        self._owner: Optional[Owner] = None

    def watch(self, owner: Owner) -> None:
        """From now on uses while something is under way ask ``owner``."""
        self._owner = owner
        register(self.param, self)

    def leave(self) -> None:
        """Stage "leave": the parameter is plain, whatever is under way."""
        self._go("leave")

    def unwatch(self) -> None:
        """The gradient is the program's alone, and so is the parameter. One that is not IDLE goes on to ask its owner, which raises."""
        unguard_gradient(self.view)
        if self.stage == IDLE:
            unregister(self.param)

    def forget(self) -> None:
        """After :meth:`unwatch`: the flat buffer, and the gradients that are kept for a sum, are not needed any more."""
        self.view, self.gradient, self.kept, self.earlier = self.param, None, None, None

    def _go(self, what: str) -> None:
        self.stage = TRANSITIONS[what][self.stage]
        self.param.__class__ = _CLASSES[self.stage]
        if self.stage == IDLE and self.param.grad is self.view:
            self._guard()

    def _guard(self) -> None:
        """The program gets the view. Until then, and again once nobody has it (:meth:`free`), it is a plain tensor."""
        if type(self.view) is torch.Tensor:
            guard_gradient(self.view, self)

    # -- a round -----------------------------------------------------------------------------------------------------------

    def forward_begins(self) -> None:
        """Remember the tensor that is ``grad`` now, without keeping it. With the guards off."""
        gradient = self.param.grad
        self._before = None if gradient is None or gradient is self.view else weakref.ref(gradient)

    def reach(self, now: float) -> None:
        """Backward has added to ``grad``."""
        self.ready = now
        self.touched = True

    def expect(self) -> None:
        """Stage "expect"; ``slot`` is OWN."""
        self.slot = OWN
        self._go("expect")

    def take(self, gradient: List[torch.Tensor], scale: float, filled: bool) -> None:
        """Write a gradient, times ``scale``, into the flat buffer; ``grad`` is None then. With the guards off. ``gradient``: in a list of
        its own, which has the only reference here, so that others can be counted; an empty list for zeros. ``filled``: as for
        :meth:`contribute`."""
        stays = bool(gradient) and filled and not self.touched
        if stays and gradient[0] is self.view:
            self.give_own_memory()
        apart = not gradient or gradient[0] is not self.view
        if apart:
            self.free()
        if not gradient:
            self.view.zero_()
        elif apart:
            torch.mul(gradient[0], scale, out=self.view)
        else:
            self.view.mul_(scale)
        self.param.grad = None
        if gradient and apart and held_elsewhere(gradient, self._before is not None and self._before() is gradient[0]):
            self.kept = gradient[0]
        self.earlier = gradient[0] if stays else None

    def contribute(self, number: int, filled: bool, streams: Optional[Streams]) -> None:
        """Stage "contribute" to round ``number``; ``slot`` is HIDDEN. ``filled``: backward is over and has not contributed for it, so that
        it waits for the ranks' answers as well."""
        if streams is not None:
            self.mark = streams.mark(self.param.device, self.mark)
        self.slot, self.factors = HIDDEN, []
        self.absent, self.touched = filled and not self.touched, False
        self._go("contribute")
        self.round, self.unlanded = number, len(self.units) + int(filled)

    def land(self, used: bool = False) -> bool:
        """A unit has landed, or the ranks' answers have, which say whether it was ``used``; True if nothing is left to land. In the landing
        thread, which holds the lock."""
        if used:
            self.absent, self.earlier = False, None
        self.unlanded -= 1
        return not self.unlanded

    # -- what the program sees of grad --------------------------------------------------------------------------------------

    def sum(self) -> torch.Tensor:
        """The tensor that is to be ``grad`` now that the sum is there: the one that the program holds, or the view. With the guards off."""
        kept, self.kept = self.kept, None
        self.multiply()
        return self.view if kept is None else kept.copy_(self.view)

    def total(self) -> Optional[torch.Tensor]:
        """What is to be ``grad`` now that the sum and the ranks' answers are there: :meth:`sum`, or what it was before if no rank has used
        the parameter. With the guards off, once."""
        earlier, self.earlier = self.earlier, None
        if not self.absent:
            return self.sum()
        self.kept = None
        return earlier

    def present(self) -> List[torch.Tensor]:
        """What ``grad`` is now, as :meth:`take` wants it; no sum is under way. With the guards off."""
        found = self.total() if self.hidden else self.param.grad
        return [] if found is None else [found]

    def multiply(self) -> None:
        """The sum is there: multiply it by the :attr:`factors`. With the guards off, once."""
        factors, self.factors = self.factors, []
        for factor in factors:
            self.view.mul_(factor)

    def show(self) -> None:
        """The sum is there, and its tensor in the parameter's own slot, with what backward has added since; ``slot`` is OWN unless it is
        CLEARED."""
        if self.slot == OWN:
            return
        with plainly():
            if self.slot == HIDDEN:
                self.param.grad, self.slot = self.merged(), OWN
            else:
                self.total()

    def merged(self) -> Optional[torch.Tensor]:
        """What ``grad`` is to be, the sum being there: that and what backward has added to the parameter's own slot since. With the guards
        off."""
        fresh = self.param.grad
        total = self.total() if self.slot == HIDDEN else None
        return fresh if total is None else total if fresh is None else total.add_(fresh)

    def hold(self, value: Optional[torch.Tensor]) -> None:
        """While SUMMING, put this into the parameter's own slot; ``slot`` is OWN or CLEARED."""
        self.slot = CLEARED if value is None else OWN
        with plainly():
            self.param.grad = value

    def clear(self) -> None:
        """``grad`` is None from now on, but an update under way still has it; ``slot`` is CLEARED. The lock is held."""
        if self.stage == IDLE:
            self.param.grad = None
            return
        self.slot = CLEARED
        if self.update is None:
            with plainly():
                self.param.grad = None

    def zero_later(self) -> bool:
        """Whether an update is under way, so that the gradient cannot be filled with zeros now: ``slot`` is ZEROED. The lock is held."""
        if self.update is not None and self.slot in (HIDDEN, OWN):
            self.slot = ZEROED
        return self.update is not None

    @property
    def hidden(self) -> bool:
        """Whether the sum is, or will be, in the flat buffer only, and ``grad``."""
        return self.stage == SUMMING and self.slot == HIDDEN

    # -- for the guards ----------------------------------------------------------------------------------------------------

    @property
    def updating(self) -> bool:
        """Whether every use waits."""
        return self.stage == STEPPING

    def await_update(self) -> None:
        """Return when the parameter is plain."""
        self._asked().release(self)

    def await_gradient(self) -> None:
        """See :meth:`Owner.await_gradient`."""
        self._asked().await_gradient(self)

    def await_own_memory(self) -> None:
        """Return when sum and update are done and what the program holds of the view has memory of its own."""
        self.await_gradient()
        self.give_own_memory()

    def lent_norm(self) -> Optional[torch.Tensor]:
        """The 2-norm of the view if it is lent, else None."""
        return self._asked().norm(self) if self.hidden and not self.factors else None

    def lent_multiply(self, factor: Any) -> bool:
        """Multiply the view by this, if it is lent."""
        if self.hidden and float(factor) != 1.0:
            self.factors.append(factor)
        return self.hidden

    def read_grad(self, clips: bool = False) -> Optional[torch.Tensor]:
        """What the program gets as ``grad``. ``clips``: it is ``clip_grad_norm_`` that reads it."""
        if self._owner is not None and (self.stage == STEPPING or self.slot != HIDDEN):
            self._owner.fill()
        if self.stage == STEPPING:
            if self.slot == CLEARED:
                return None
            if self.gradient is self.view and not self.absent:
                self._guard()
                return self.view
            self.await_update()
            return self.param.grad
        if self.slot == HIDDEN:
            if clips and self._asked().lends(self):
                self._guard()
                return self.view
            self._asked().expose(self)
        if not clips:  # which keeps nothing, and works faster with plain tensors
            self._guard()
        with plainly():
            return self.param.grad

    def write_grad(self, value: Optional[torch.Tensor]) -> None:
        """The program sets or deletes ``grad``."""
        self._asked().fill()  # this rank contributes what ``grad`` has been until now
        if self.stage == STEPPING and value is None:
            self._asked().clear(self)
            return
        if self.stage == STEPPING:
            self.await_update()
            self.param.grad = value
            return
        if self.slot != OWN and value is not None:
            self._asked().expose(self)
        self.hold(value)

    def _asked(self) -> Owner:
        assert self._owner is not None
        return self._owner

    # -- the update --------------------------------------------------------------------------------------------------------

    def ask(self, step: Step, gradient: torch.Tensor) -> None:
        """Stage "ask": the update by this gradient is to be done; a ``slot`` that is neither HIDDEN nor OWN is OWN. The lock is held."""
        self.gradient = gradient
        if self.slot not in (HIDDEN, OWN):
            self.slot = OWN
        self.update = step  # before the guard: a signal's handler that reads the parameter takes the guard away if there is no update
        self._go("ask")

    def settle(self) -> None:
        """Stage "settle"."""
        self._go("settle")

    def restore(self) -> bool:
        """No rank has used it: it is updated by the gradient of before; False if there was none. The lock is held."""
        self.gradient, self.earlier, self.kept = self.earlier, None, None
        return self.gradient is not None

    def cancel(self) -> None:
        """There is nothing to update it by. The lock is held."""
        self.gradient = self.update = None

    def updated(self, streams: Optional[Streams]) -> None:
        """The update is done, and what zero_grad() has asked for since. In the updating thread, which holds the lock."""
        if self.slot == CLEARED:
            self.param.grad = None
        elif self.slot == ZEROED and self.gradient is not None:
            self.gradient.zero_()
            if streams is not None:
                streams.settle()
        self.update = None

    def release(self) -> None:
        """Stage "release". The lock is held."""
        self._go("release")
        self.gradient = None

    # -- memory ------------------------------------------------------------------------------------------------------------

    def place(self, view: torch.Tensor, units: Sequence[int], urgency: int) -> None:
        """Its range in new flat buffers, the units that it is in, and its urgency, as a plan has them. It has no range yet."""
        self.view, self.units, self.urgency = view, list(units), urgency

    def vacate(self) -> None:
        """It has no range any more. Nothing is under way."""
        self.free()
        self.view = self.param

    def free(self) -> None:
        """The flat buffer may be written: what the program still holds of the last sum gets memory of its own."""
        if sys.getrefcount(self.view) > ALONE or self.param.grad is self.view:
            self.give_own_memory()
        unguard_gradient(self.view)

    def give_own_memory(self) -> None:
        """What the program holds as this gradient becomes a plain tensor with memory of its own; the flat buffer gets another view, which
        a backward may write into also if the program is in inference mode now."""
        with plainly(), torch.inference_mode(False):
            gradient = self.view
            unguard_gradient(gradient)
            self.view = view_like(gradient, gradient, gradient.storage_offset())
            gradient.set_(gradient.clone(memory_format=torch.preserve_format))  # type: ignore[call-overload]
