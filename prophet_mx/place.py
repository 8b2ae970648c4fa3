"""Which worker of ``prophet-mx launch`` this process is, so that the launcher's number is the rank, and what a message calls it.

ps-lite's scheduler gives out ranks once all workers have come: by their addresses as texts, the greatest first, and at one address by the
ports on which they listen. The launcher numbers workers in this order, and gives each a port. It cannot set ``PORT``, which ps-lite reads:
what else a worker starts would listen there as well. So the port has a variable of its own until the store is made
(:mod:`prophet_mx.mxnet.creation`). If a port is taken by then, ps-lite takes another, and numbers may differ: then messages have both.
"""

import os
from typing import Mapping, Optional

LISTEN_VARIABLE = "PORT"  # ps-lite takes it as the port that its process has to listen on
VARIABLE = "PROPHETMX_WORKER"  # as value_of() has it; no setting


def value_of(index: int, port: int) -> str:
    """What a worker's variable says.

    >>> value_of(1, 23456)
    '1:23456'
    """
    return f"{index}:{port}"


def index_here(environ: Mapping[str, str] = os.environ) -> Optional[int]:
    """The launcher's number of this process; None if it has not started it."""
    return _part(environ, 0)


def port_here(environ: Mapping[str, str] = os.environ) -> Optional[int]:
    """The port at which this process's store had best listen; None if there is no such port."""
    return _part(environ, 1)


def worker_name(rank: int, environ: Mapping[str, str] = os.environ) -> str:
    """What messages call this process, of this rank.

    >>> worker_name(1, {}), worker_name(1, {VARIABLE: "1:9"}), worker_name(1, {VARIABLE: "0:9"})
    ('worker 1', 'worker 1', 'rank 1 (process worker 0)')
    """
    index = index_here(environ)
    return f"worker {rank}" if index in (None, rank) else f"rank {rank} (process worker {index})"


def other_name(rank: int, mine: int, environ: Mapping[str, str] = os.environ) -> str:
    """What messages call another worker, where this one has the rank ``mine``: ranks are not the launcher's numbers if one differs."""
    return f"worker {rank}" if index_here(environ) in (None, mine) else f"rank {rank}"


def _part(environ: Mapping[str, str], place: int) -> Optional[int]:
    parts = environ.get(VARIABLE, "").split(":")
    return int(parts[place]) if len(parts) == 2 and all(part.isdecimal() for part in parts) else None
