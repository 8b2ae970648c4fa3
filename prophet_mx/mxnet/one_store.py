"""A process can make one ``dist`` store: MXNet waits for ever in the call that makes a second one, even if the first one was freed.

Scripts make a second one by mistake: they wrap a store, and then give the string ``"dist_sync"`` to a Trainer or to ``fit``, which make a
store of it.
"""

import functools
from typing import Any, Callable

import mxnet as mx

from .arguments import KVStoreMXNetError


def refuse_another() -> None:
    """A ``dist`` store was wrapped: from now on ``mx.kv.create`` raises an error where it would wait for ever; local stores are made as
    before. Calling this again changes nothing."""
    replace_create("_refuses_another", _refusing)


def replace_create(mark: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> bool:
    """Put a function around ``mx.kvstore.create``, in all places that MXNet calls it by; False if the present one has this mark already."""
    create = mx.kvstore.create
    if getattr(create, mark, False):
        return False
    replacement = around(create)
    setattr(replacement, mark, True)
    for module in (mx.kvstore, mx.kvstore.base):
        if getattr(module, "create", None) is create:
            module.create = replacement
    return True


def _refusing(create: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(create)
    def create_local(name: str = "local") -> Any:
        if isinstance(name, str) and "dist" in name.lower():
            raise KVStoreMXNetError(
                f"a second dist store ({name!r}) in one process is not possible: MXNet would wait for ever in this call. Pass the store "
                "that was wrapped, not a string: kvstore=kv"
            )
        return create(name)

    return create_local
