"""What a parameter of tracked.py knows of those that it asks, and of those that update it. ``tracked`` is such a parameter."""

from typing import Any, List, Protocol, Sequence

import torch


class Step(Protocol):
    """The ``step()`` that an update belongs to; see ``Update``."""

    marks: List[Any]

    def apply(self, members: Sequence[Any]) -> None:
        """Update these parameters by their gradients."""


class Owner(Protocol):
    """What a parameter asks of the exchange; all of it may wait, in the caller's thread."""

    def release(self, tracked: Any) -> None:
        """Return when the update is done; the parameter is plain then."""

    def expose(self, tracked: Any) -> None:
        """Return when the sum is there and in the parameter's own ``grad``."""

    def clear(self, tracked: Any) -> None:
        """``grad`` is None from now on; an update that is under way still uses it."""

    def fill(self) -> None:
        """If backward is over, contribute for the parameters that it has not reached."""

    def lends(self, tracked: Any) -> bool:
        """Whether ``clip_grad_norm_`` may have the view before the sum is there, as the norm is known earlier."""

    def norm(self, tracked: Any) -> torch.Tensor:
        """The 2-norm of the sum of a gradient that is lent."""

    def await_gradient(self, tracked: Any) -> None:
        """Return when the sum and the update are done."""
