"""Scheduling without a changed line: every ``dist_sync`` store that a script makes is wrapped, and a line says so.

``prophet-mx launch --schedule`` has :func:`install` called right after ``import mxnet``; a program can call it itself. It covers
``mx.kv.create("dist_sync")`` and the string given to ``Module.fit``, ``Module.init_optimizer``, ``gluon.Trainer`` or
``FeedForward``, which all end up in ``mx.kvstore.create``.
"""

import atexit
import logging
import multiprocessing
import os
import sys
from typing import Any, Callable

import mxnet as mx

from ..policies import OFF
from .creation import expect_store, replace_create

logger = logging.getLogger("prophet_mx")

_made = 0  # stores of this process that were wrapped


def install() -> None:
    """From now on ``mx.kvstore.create`` wraps every store whose traffic can be scheduled; calling this again changes nothing."""
    expect_store()
    if not replace_create("_prophet_mx", _wrapping):
        return
    if os.environ.get("DMLC_ROLE") == "worker" and multiprocessing.parent_process() is None:
        atexit.register(_report_none)


def _wrapping(create: Callable[..., Any]) -> Callable[..., Any]:
    def create_scheduled(name: str = "local") -> Any:
        global _made
        store = create(name)
        if type(store) is not mx.kvstore.KVStore or "dist" not in store.type:
            return store
        if "async" in store.type:
            _say(f"--schedule: the store {name!r} is not scheduled, because its updates do not wait for one another")
            return store
        from .kvstore import ScheduledKVStore

        scheduled = ScheduledKVStore(store)
        scheduled.automatic = True
        _made += 1
        policy = scheduled.stats()["policy"]
        if policy == OFF:  # the reason is in the log
            _say(f"--schedule: the store {name!r} is wrapped, but not scheduled")
        else:
            _say(f"--schedule: the store {name!r} is scheduled, policy {policy}")
        return scheduled

    create_scheduled.__doc__ = create.__doc__
    return create_scheduled


def _say(sentence: str) -> None:
    """Log a sentence, or print it where logging would show nothing: the user asked for this and must see that it happened."""
    if logger.isEnabledFor(logging.INFO) and logger.hasHandlers():
        logger.info("%s", sentence)
    else:
        print(f"prophet_mx: {sentence}", file=sys.stderr, flush=True)


def _report_none() -> None:
    if not _made:
        _say("--schedule: this script made no dist_sync store, so nothing was scheduled")
