"""Process groups of our own, of the same ranks as the program's: its collectives never come between ours."""

import threading
import uuid
from contextlib import contextmanager
from datetime import timedelta
from inspect import signature
from typing import Any, Dict, Iterator, List, Optional

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from ..config import Config
from .strategies import ANY_ORDER


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
        self._name = "" if self._parent is None else _common_name(self._parent)

    def new(self, backend: Optional[str] = None) -> dist.ProcessGroup:
        """Make one. ``backend``: None for the parent's."""
        backend = backend or dist.get_backend(self._parent)  # new_group() takes that of the default group
        if self._parent is None:
            group = dist.new_group(timeout=self._timeout, backend=backend)
        else:
            ranks = dist.get_process_group_ranks(self._parent)
            given = {"timeout": self._timeout, "backend": backend, "use_local_synchronization": True, **_IN_ORDER}
            with _called(f"{self._name}-{len(self.made)}"), _unbound():
                group = dist.new_group(ranks, **given)
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


# -- groups of some ranks of the job ---------------------------------------------------------------------------------------

# Rank 0 of a group is that of the program's group. PyTorch sorts the ranks otherwise; before it could be told not to, it always did.
_IN_ORDER: Dict[str, Any] = {"sort_ranks": False} if "sort_ranks" in signature(dist.new_group).parameters else {}

# Ranks find each other by the name of a group. If not all ranks of the job make it, PyTorch derives the name from the ranks in it, and from
# groups that this process has. So a group has the name of an earlier one that was destroyed, and ranks look for each other at addresses of
# the past. Or names differ, where one rank is in more groups than another. Either way they wait until their time is out. So ours have names
# of their own. They still count where the program makes such a group later.
_local = threading.local()


def _common_name(parent: dist.ProcessGroup) -> str:
    """A name that no group has had, the same on all ranks of ``parent``."""
    shared = [uuid.uuid4().hex]
    dist.broadcast_object_list(shared, dist.get_global_rank(parent, 0), group=parent)
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


@contextmanager
def _unbound() -> Iterator[None]:
    """Within, the job's group is bound to no device. Where it is, as by ``init_process_group("nccl", device_id=...)``, PyTorch splits its
    communicator for each new group, for which it waits for all ranks of the job."""
    job = dist.group.WORLD
    device = getattr(job, "bound_device_id", None)
    if device is None:
        yield
        return
    job.bound_device_id = None
    try:
        yield
    finally:
        job.bound_device_id = device
