"""A backend of torch.distributed that notes in which order a rank starts the collectives of all its groups, and a check of these orders.

It is gloo inside. Its name is another one, so that the package treats it as it treats NCCL. PyTorch hands it the collectives of C++ code
too: those of DistributedDataParallel, and broadcasts of several tensors.

With NCCL two collectives that ranks start in different orders can wait for each other for ever: within a group, and also across groups, as
each occupies a part of the GPU until it ends. Of two that wait for all ranks, and that two ranks start in different orders, one is always
under way on some rank when the other is started. So there is one order for all ranks, or it is wrong.
"""

import threading
import time
from collections import Counter
from queue import SimpleQueue
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future

NAME = "ordered"
SECONDS = 0.005  # that each collective takes longer than gloo does, so that several are under way


class Started(NamedTuple):
    """A collective that a rank has started. Groups are numbered as they were made. ``beside``: other groups that had some under way."""

    group: int
    operation: str
    bytes: int
    thread: str = "MainThread"
    beside: Tuple[int, ...] = ()

    def __str__(self) -> str:
        beside = "".join(f", beside group {number}" for number in self.beside)
        return f"{self.operation} of {self.bytes} bytes in group {self.group} by {self.thread}{beside}"


class OrderError(AssertionError):
    """Ranks have started collectives in different orders."""


class Log:
    """What this process has started since :func:`begin`."""

    def __init__(self) -> None:
        self.started: List[Started] = []
        self.lock = threading.Lock()  # held while one is started: the log has the order in which they are
        self._groups: Dict[Any, int] = {}
        self._under_way: Counter[int] = Counter()

    def number(self, group: Any) -> int:
        """Of a new group."""
        return self._groups.setdefault(group, len(self._groups))

    def start(self, group: int, operation: str, tensors: Sequence[torch.Tensor]) -> None:
        """The lock is held."""
        beside = tuple(sorted(other for other, count in self._under_way.items() if count and other != group))
        size = sum(tensor.nbytes for tensor in tensors)
        self.started.append(Started(group, operation, size, threading.current_thread().name, beside))
        self._under_way[group] += 1

    def end(self, group: int) -> None:
        """One of the group has ended."""
        with self.lock:
            self._under_way[group] -= 1


log = Log()


class Ordered(dist.ProcessGroup):
    """A group whose collectives end one after the other, as those in NCCL's stream."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)
        self._gloo, self._log = dist.ProcessGroupGloo(store, rank, size, timeout), log
        self._number = log.number(self)
        self._ends: SimpleQueue[Optional[Tuple[Any, Any, Any]]] = SimpleQueue()
        threading.Thread(target=self._end_all, name="ordered", daemon=True).start()

    # What PyTorch keeps for other groups itself.

    def getBackendName(self) -> str:  # noqa: N802
        return NAME

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        pass

    def shutdown(self) -> None:
        self._ends.put(None)

    def allreduce(self, tensors: Any, options: Any) -> Any:
        return self._start("allreduce", tensors, lambda: self._gloo.allreduce(tensors, options), tensors)

    def broadcast(self, tensors: Any, options: Any) -> Any:
        return self._start("broadcast", tensors, lambda: self._gloo.broadcast(tensors, options), tensors)

    def allgather(self, outputs: Any, inputs: Any, options: Any) -> Any:
        return self._start("allgather", inputs, lambda: self._gloo.allgather(outputs, inputs, options), outputs)

    def barrier(self, options: Any) -> Any:
        return self._start("barrier", [], lambda: self._gloo.barrier(options), [])

    def _start(self, operation: str, tensors: Any, start: Callable[[], Any], result: Any) -> Any:
        future: Any = torch.futures.Future()
        with self._log.lock:
            self._log.start(self._number, operation, tensors)
            self._ends.put((start(), future, result))
        return _create_work_from_future(future)

    def _end_all(self) -> None:
        while True:
            item = self._ends.get()
            if item is None:
                return
            work, future, result = item
            try:
                work.wait()
            except RuntimeError as error:
                future.set_exception(error)
            else:
                time.sleep(SECONDS)
                self._log.end(self._number)
                future.set_result(result)


def begin() -> Any:
    """A group of all ranks of this backend, and an empty log: its number is 0. The groups that the package makes of it have the next."""
    global log
    log = Log()
    if not hasattr(dist.Backend, NAME.upper()):
        dist.Backend.register_backend(NAME, Ordered, devices=["cpu"])
    return dist.new_group(backend=NAME)


def check(logs: Sequence[Sequence[Started]], within: Optional[int] = None) -> None:
    """Raise OrderError unless all ranks have started the same collectives in the same order: of this group, or of all groups."""
    chosen = [[each for each in started if within in (None, each.group)] for started in logs]
    for rank, mine in enumerate(chosen):
        for place in range(max(len(mine), len(chosen[0]))):
            first, other = [started[place] if place < len(started) else None for started in (chosen[0], mine)]
            if first is None or other is None or first[:3] != other[:3]:
                raise OrderError(f"the collective of number {place} is: on rank 0 {first}; on rank {rank} {other}")
