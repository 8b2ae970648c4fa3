"""Starts one process of a test's job: the job's script, or, as the scheduler, MXNet's own scheduler without the rest of its Python package.

usage: role.py SCRIPT ARGUMENT ...

To import mxnet takes most of the time in which a process starts, and a scheduler needs nothing of it but the library.
"""

import ctypes
import os
import sys
from importlib.util import find_spec

CONTROLLER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


def schedule() -> None:
    """What ``import mxnet`` does in a scheduler: serve the job until its last process has said that it ends."""
    library = ctypes.CDLL(os.path.join(os.path.dirname(find_spec("mxnet").origin), "libmxnet.so"))
    library.MXGetLastError.restype = ctypes.c_char_p
    store, nothing = ctypes.c_void_p(), CONTROLLER(lambda *command: None)
    for call in (
        lambda: library.MXKVStoreCreate(b"dist", ctypes.byref(store)),
        lambda: library.MXKVStoreRunServer(store, nothing, None),
        library.MXNotifyShutdown,
    ):
        if call() != 0:
            sys.exit(f"the scheduler failed: {library.MXGetLastError().decode()}")


if os.environ["DMLC_ROLE"] == "scheduler":
    schedule()
else:
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
