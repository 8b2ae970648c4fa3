"""What the wrapper asks of the store that it wraps."""

from typing import Callable, Protocol


class RawStore(Protocol):
    """The wrapped store's own operations, as they are without scheduling."""

    rank: int
    num_workers: int
    init: Callable[..., None]
    push: Callable[..., None]
    pull: Callable[..., None]
    pushpull: Callable[..., None]
    broadcast: Callable[..., None]
    set_optimizer: Callable[..., None]
    barrier: Callable[[], None]
