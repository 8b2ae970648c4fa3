"""What runs in a process of :mod:`support.ranks`: one function after another, each in a process group of its own, or a script."""

import ctypes
import faulthandler
import importlib.util
import os
import signal
import sys
import threading
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any, Callable, Mapping

import torch
import torch.distributed as dist

COLLECTIVE = 60  # seconds after which gloo gives up: longer than the parent waits for most calls


def prepare(log: str, env: Mapping[str, str]) -> None:
    """Whatever is printed goes to the file ``log``, also what is printed by compiled code."""
    with open(log, "wb") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    os.environ.update(env)
    torch.set_num_threads(1)


def serve(parent: Connection, rank: int, size: int, log: str, env: Mapping[str, str]) -> None:
    """Run what requests say, until there are no more."""
    prepare(log, env)
    faulthandler.register(signal.SIGUSR1)  # the parent sends it if no answer comes
    while True:
        try:
            path, name, arguments, meeting, together = parent.recv()
        except EOFError:
            os._exit(0)  # what a failed call has left behind must not hold up the end
        print(f"--- {name} {arguments}", flush=True)
        try:
            function = getattr(module_of(path), name)
            answer = True, call(getattr(function, "__wrapped__", function), arguments, meeting, together, rank, size)
        except BaseException:  # what pytest raises is no Exception
            answer = False, traceback.format_exc()
            print(answer[1], flush=True)
        parent.send(answer)


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


def script(text: str, arguments: Any, log: str, env: Mapping[str, str]) -> None:
    """Run a script as the interpreter would: it alone says how the process ends, and all that runs at an interpreter's end does."""
    prepare(log, env)
    sys.argv = ["script.py", *map(str, arguments)]
    failed = ctypes.pythonapi.PyRun_SimpleString(text.encode())  # in __main__; does not return from sys.exit()
    ctypes.pythonapi.Py_Exit(1 if failed else 0)
