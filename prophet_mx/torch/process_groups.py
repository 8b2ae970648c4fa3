"""Process groups of our own, of the same ranks as the program's: its collectives never come between ours."""

import threading
import uuid
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Iterator, List, Optional

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ..config import Config
from .strategies import ANY_ORDER, backend_for


class OwnGroups:
    """The groups of one optimizer. All ranks make this, and each group, at the same points of the program.

    Parameters
    ----------
    parent : the program's group; None for all ranks of the job.
    config : its ``stall_abort`` is the groups' time-out; if it is None, they have that of ``parent`` for ``device``, whatever the backend.
    device : that gradients are on.

    Attributes
    ----------
    made : the groups.
    """

    def __init__(self, parent: Optional[dist.ProcessGroup], config: Config, device: torch.device) -> None:
        self.made: List[dist.ProcessGroup] = []
        self._parent = None if parent is dist.group.WORLD else parent
        self._timeout = _timeout(parent, device) if config.stall_abort is None else timedelta(seconds=config.stall_abort)
        self._name = "" if self._parent is None else _common_name(self._parent, device)

    def new(self, backend: Optional[str] = None) -> dist.ProcessGroup:
        """Make one. ``backend``: None for the parent's."""
        backend = backend or dist.get_backend(self._parent)  # new_group() takes that of the default group
        if self._parent is None:
            group = dist.new_group(timeout=self._timeout, backend=backend)
        else:
            ranks = dist.get_process_group_ranks(self._parent)
            with _called(f"{self._name}-{len(self.made)}"):
                group = dist.new_group(ranks, timeout=self._timeout, backend=backend, use_local_synchronization=True)
        self.made.append(group)
        return group

    def new_beside(self) -> dist.ProcessGroup:
        """Make one of gloo, for what travels beside gradients."""
        group = self.new(ANY_ORDER)
        dist.barrier(group=group)  # a rank that closes this at once must not end it while others still connect
        return group


def give_up(group: dist.ProcessGroup) -> None:
    """Destroy a group, with nothing under way in it. The program may have destroyed all groups before."""
    if dist.is_initialized() and group in distributed_c10d._world.pg_map:
        dist.destroy_process_group(group)


def _timeout(parent: Optional[dist.ProcessGroup], device: torch.device) -> Optional[timedelta]:
    """Of the collectives of this group; None, for the backend's default, where the backend or an older PyTorch does not tell."""
    try:
        found = (dist.group.WORLD if parent is None else parent)._get_backend(device).options._timeout
    except (AttributeError, RuntimeError):
        return None
    return found if isinstance(found, timedelta) else None


# -- names -----------------------------------------------------------------------------------------------------------------
# Ranks find each other by the name of a group. For one that not all ranks of the job make, PyTorch derives it from its ranks and from how
# many groups this process has. So a group that follows a destroyed one has its name, and the ranks wait at addresses of the past. And the
# names differ where one rank is in more groups than another. Either way they wait for ever. So ours have names of their own.

_local = threading.local()


def _common_name(parent: dist.ProcessGroup, device: torch.device) -> str:
    """A name that no group has had, the same on all ranks of ``parent``."""
    shared = [uuid.uuid4().hex]
    on = device if backend_for(device, parent) != ANY_ORDER else None
    dist.broadcast_object_list(shared, dist.get_global_rank(parent, 0), group=parent, device=on)
    return f"prophet_mx-{shared[0]}"


@contextmanager
def _called(name: str) -> Iterator[None]:
    """The group that this thread makes within is called so, if PyTorch has the function by which it names groups."""
    known = getattr(distributed_c10d, "_process_group_name", None)
    if known is not None and not hasattr(known, "prophet_mx"):

        def named(*arguments: Any, **more: Any) -> Any:
            return getattr(_local, "name", None) or known(*arguments, **more)

        named.prophet_mx = True  # type: ignore[attr-defined]
        distributed_c10d._process_group_name = named
    _local.name = name
    try:
        yield
    finally:
        _local.name = None
