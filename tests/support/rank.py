"""One of the processes of :class:`support.ranks.Ranks`: runs what it is told, one call after another, each in a process group of its own.

    python rank.py FD RANK SIZE

FD is a socket that requests come from and answers go to. Whatever is printed goes to the process's own log.
"""

import faulthandler
import importlib.util
import os
import signal
import sys
import threading
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any, Callable

import torch
import torch.distributed as dist

TESTS = Path(__file__).resolve().parents[1]
sys.path[0] = str(TESTS)  # for what is imported later: support, and not what lies in it
# Functions and classes of tests come by the names that pytest gives their modules: tests.pytorch.test_models. Last, as the checkout's own
# prophet_mx is not built.
sys.path.append(str(TESTS.parent))

COLLECTIVE = 60  # seconds after which gloo gives up: longer than the parent waits for most calls


def module_of(path: str) -> ModuleType:
    """The module of this file, imported once."""
    name = "case " + path
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec and spec.loader
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def call(function: Callable[..., Any], arguments: Any, meeting: str, together: bool, rank: int, size: int) -> Any:
    """Run the function while there is a process group of all ranks. It must leave no thread of the package behind."""
    before = set(threading.enumerate())
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size, timeout=timedelta(seconds=COLLECTIVE))
    try:
        result = function(**arguments)
        if together:
            dist.barrier()  # nobody tears down what another still needs
    finally:
        dist.destroy_process_group()
    left = [thread.name for thread in threading.enumerate() if thread not in before and thread.name.startswith("prophet_mx")]
    assert not left, f"threads that were left: {left}"
    return result


def main(fd: str, rank: str, size: str) -> None:
    faulthandler.register(signal.SIGUSR1)  # the parent sends it if no answer comes
    torch.set_num_threads(1)
    with Connection(int(fd)) as parent:
        while True:
            try:
                path, name, arguments, meeting, together = parent.recv()
            except EOFError:
                return
            print(f"--- {name} {arguments}", flush=True)
            try:
                function = getattr(module_of(path), name)
                answer = True, call(getattr(function, "__wrapped__", function), arguments, meeting, together, int(rank), int(size))
            except BaseException:  # what pytest raises is no Exception
                answer = False, traceback.format_exc()
                print(answer[1], flush=True)
            parent.send(answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # what a failed call has left behind must not hold up the end
