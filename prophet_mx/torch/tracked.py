"""A parameter whose gradient is reduced, and where its gradient and its update stand."""

import weakref
from typing import Any, List, Optional

import torch

IDLE = 0  # nothing under way: a plain nn.Parameter
SUMMING = 1  # backward has produced the gradient, step() has not been called for it; its sum may not be there yet
STEPPING = 2  # step() has been called; nobody has used the parameter since, and the update may not be done yet

KEPT, CLEARED, ZEROED = 0, 1, 2  # what zero_grad() or the program asked for since: nothing, None, zeros


class Tracked:
    """One parameter. The caller's threads (the main thread, and autograd's) write all but what is said otherwise.

    Attributes
    ----------
    param, name, index : the parameter, its name in the model, and its place in ``model.parameters()``.
    view : of its range in the flat buffer, in the parameter's shape and strides. Written by the contributing thread, then by collectives.
        It may be the parameter's ``grad``, as a guarded gradient; the program's first use of it gives it memory of its own.
    kept : a tensor that was ``grad`` before backward and that the program still holds: at the end of
        backward the sum goes into it, as with DDP. None at other times.
    before : refers to the tensor that was ``grad`` when the last forward began, unless that was None or ``view``.
    units : indices of the units that its elements are in.
    unlanded : units that have not come back. Set by the contributing thread, counted down by the landing thread.
    stage : IDLE, SUMMING or STEPPING.
    pending : whether its update is still to be done. Set by ``step()``, cleared by the updating thread, under the lock.
    update : the ``step()`` that it belongs to, as an ``Update``; None where none is pending.
    group : index of its group in the optimizer; None if this optimizer does not have it.
    gradient : the tensor that the update takes as gradient; ``view`` unless the program has set another. None before ``step()``.
    zero : KEPT, CLEARED or ZEROED.
    exposed : the program has read or set ``grad`` since backward: the parameter's own slot holds the gradient, not only ``view``.
    round : the round of reductions that it contributed to last.
    ready : seconds (``time.perf_counter``) at which its gradient was ready last.
    touched : backward has reached it since the last round (also within ``no_sync``).
    absent : it was not used here in this round, so that the ranks' answers tell whether it was used at all.
    mark : when its gradient was in the flat buffer, in the stream that wrote it; None on the CPU.
    urgency : 0 for the parameter that forward needs first.
    """

    __slots__ = (
        "param",
        "name",
        "index",
        "view",
        "kept",
        "before",
        "units",
        "unlanded",
        "stage",
        "pending",
        "update",
        "group",
        "gradient",
        "zero",
        "exposed",
        "round",
        "ready",
        "touched",
        "absent",
        "mark",
        "urgency",
        "bytes",
    )

    def __init__(self, param: torch.nn.Parameter, name: str, index: int) -> None:
        self.param, self.name, self.index = param, name, index
        self.view: torch.Tensor = param
        self.kept: Optional[torch.Tensor] = None
        self.before: Optional[weakref.ref[torch.Tensor]] = None
        self.units: List[int] = []
        self.unlanded = 0
        self.stage = IDLE
        self.pending = False
        self.update: Any = None
        self.group: Optional[int] = None
        self.gradient: Optional[torch.Tensor] = None
        self.zero = KEPT
        self.exposed = False
        self.round = -1
        self.ready = 0.0
        self.touched = self.absent = False
        self.mark: Any = None
        self.urgency = index
        self.bytes = param.numel() * param.element_size()
