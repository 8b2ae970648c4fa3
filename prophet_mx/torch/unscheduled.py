"""What a job does that keeps its gradients from being scheduled as they could be. Each reason is said once, and listed in ``stats()``."""

import contextlib
import logging
import weakref
from typing import Any, Iterator, List, Tuple

import torch
from torch import nn

from .exchange import Exchange
from .habits import all_read
from .hooks import Hook, weakly
from .tracked import STEPPING

logger = logging.getLogger("prophet_mx")

STREAK = 10  # iterations in a row that show that a job does so in every one
LISTED = 3  # parameters in a message


class Unscheduled:
    """Looks at one model's iterations. Called in the threads of ``step()`` and forward.

    Parameters
    ----------
    exchange : of the model.
    frozen : its parameters that are not trained, by name.

    Attributes
    ----------
    reasons : those found so far, in words.
    unfrozen : whether a parameter of the optimizer was unfrozen that was frozen at the beginning.
    """

    def __init__(self, exchange: Exchange, frozen: List[Tuple[str, nn.Parameter]]) -> None:
        self._exchange, self._frozen, self.unfrozen = exchange, frozen, False
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._gradients = self._weights = 0  # iterations in a row in which all of them were read too early
        self._stepped = False  # a step() whose updates the next forward could overlap with
        self.reasons: List[str] = []
        self._stepping = False
        self._handles: List[Any] = []

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """One of the user's optimizers of the model."""
        self._optimizers.add(optimizer)
        self._handles.append(optimizer.register_step_pre_hook(weakly(self.stepped_directly, type(optimizer).__name__)))

    def _found(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)
            logger.warning("%s", reason)

    def step_begins(self, kind: str, lazy: bool, first: bool) -> None:
        """The program calls ``step()`` of an optimizer of this class. ``lazy``: it runs as sums arrive; ``first``: in this iteration."""
        self.look_for_unfrozen()
        planned = not self._exchange.recording
        if planned and not lazy:
            self._found(
                f"{kind} is not known to treat each parameter by itself: it runs when all sums have arrived, and nothing overlaps "
                "with the next forward"
            )
        if first:
            self._gradients = self._gradients + 1 if planned and lazy and all_read(self._exchange.tracked) else 0
        if first and self._gradients == STREAK:
            self._found(
                f"all gradients were read before step() in {STREAK} iterations in a row, as for clipping or by a GradScaler: each waits "
                "there for all sums, and nothing overlaps with the next forward"
            )
        self._stepped = planned and lazy or self._stepped and not first

    @contextlib.contextmanager
    def within_step(self) -> Iterator[None]:
        """While ``step()`` runs the user's optimizer, or its hooks."""
        self._stepping = True
        try:
            yield
        finally:
            self._stepping = False

    def forward_begins(self) -> None:
        """A forward of a training begins."""
        self.look_for_unfrozen()
        if not self._stepped or self._exchange.stepped_here:
            return
        self._stepped = False
        self._weights = 0 if any(each.stage == STEPPING for each in self._exchange.tracked) else self._weights + 1
        if self._weights == STREAK:
            self._found(
                f"all weights were read between step() and the next forward in {STREAK} iterations in a row, or synchronize() was called: "
                "each waits there for all updates, and nothing overlaps with the forward"
            )

    def stepped_directly(self, kind: str) -> None:
        """A user's optimizer of this class runs its own ``step()``."""
        if not self._stepping:
            self._found(
                f"step() of the {kind} inside was called, and waits for all sums; after ScheduledOptimizer(model, optimizer) call "
                "only its own step()"
            )

    def look_for_unfrozen(self) -> None:
        """At the beginning of a forward, and of ``step()``. Gradients of parameters that are unfrozen, and that the optimizer has, are
        dropped from now on: nobody reduces them, and weights that they change, or a norm that they are a part of, would be this rank's."""
        found = [(name, param) for name, param in self._frozen if param.requires_grad]
        if not found:
            return
        self._frozen = [(name, param) for name, param in self._frozen if not param.requires_grad]
        mine = {id(param) for optimizer in self._optimizers for group in optimizer.param_groups for param in group["params"]}
        for _, param in found:
            if id(param) in mine:
                self.unfrozen = True
                param.grad = None
                self._handles.append(param.register_post_accumulate_grad_hook(Hook(_drop)))
        listed = ", ".join(name for name, _ in found[:LISTED]) + (f" and {len(found) - LISTED} more" if len(found) > LISTED else "")
        self._found(
            f"{listed} did not require a gradient when the ScheduledOptimizer was made: their gradients are not reduced, and they are "
            "not trained. close() it and create a new one"
        )

    def close(self) -> None:
        """The user's optimizers are their own again."""
        for handle in self._handles:
            handle.remove()


def _drop(param: nn.Parameter) -> None:
    """After backward has added to ``grad``."""
    param.grad = None
