"""Which backward passes are under way. PyTorch says so only to what runs within them, and says nothing of one that raises."""

from functools import partial
from typing import Set

import torch

from ..errors import CollectiveError


def in_no_pass() -> bool:
    """Whether this thread is in no backward."""
    return bool(torch._C._current_graph_task_id() == -1)  # type: ignore[attr-defined]


class Passes:
    """Those that have contributed and are not over, or have raised. Called in the threads of backward, and of what follows it."""

    def __init__(self) -> None:
        self._running: Set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._running)

    def note(self) -> None:
        """This backward is under way, until PyTorch calls back; it does not if backward raises."""
        task = torch._C._current_graph_task_id()  # type: ignore[attr-defined]
        if task != -1 and task not in self._running:
            self._running.add(task)
            # No function in Python, which a compiled step would trace.
            torch.autograd.Variable._execution_engine.queue_callback(partial(self._running.discard, task))  # type: ignore[attr-defined]

    def end(self, incomplete: bool) -> None:
        """No backward is under way. CollectiveError if one has raised, and gradients of it are missing."""
        if self._running and incomplete:
            raise CollectiveError(
                "backward raised an error before it had given all gradients, which other ranks wait for: the job cannot continue"
            )
        self._running.clear()
