"""Where MXNet's dist_sync keeps a key (kvstore_dist.h, EncodeDefaultKey): on one server, or, if it is large, spread over all; and which
keys suit slices. Pure: the same numbers in, the same keys out, on every worker.

The caller numbers its keys, so whole gradients load the servers unevenly: where weights and biases alternate, one of two servers gets all
weights. The keys of slices, of groups and of large whole gradients can be chosen, and make up for it.
"""

import heapq
from typing import Dict, Iterable, List, Optional, Sequence

from .units import MOST

FACTOR = 9973  # the remainder of key number * FACTOR by the number of servers is the server of a key that is not spread
SURE = (2**31 - 1) // FACTOR  # the last number of a key that MXNet can place whatever the number of servers
BIGARRAY_VARIABLE = "MXNET_KVSTORE_BIGARRAY_BOUND"
BIGARRAY_BOUND = 10**6  # its default: elements from which on an array is spread
PROBES = 32  # keys at the least with which workers measure what a message costs: about as many messages as are ready at once in a job
REACH = 32  # how many more, or fewer, text keys than rank 0 a worker may have made and still be told what is wrong
ROW = 4 * REACH  # keys by which workers find that out, see mxnet/meeting.py
MEETINGS = 2  # of workers after that and before the slices are made, with a key each


def product(number: int) -> int:
    """What MXNet's multiplication of a key's number gives: it is one of 32 bits, which overflows above SURE."""
    return (number * FACTOR + 2**31) % 2**32 - 2**31


def server_of(number: int, servers: int) -> Optional[int]:
    """The server of key ``number``, if it is not spread; None if MXNet cannot place it: in C++ the remainder of a negative product is
    negative.

    >>> server_of(3, 2), server_of(215331, 2)
    (1, None)
    """
    found = product(number)
    return found % servers if found >= 0 or found % servers == 0 else None


def probes(servers: int) -> int:
    """The number of keys with which workers measure the cost of a message: every server gets some."""
    return max(PROBES, servers)


def service_keys(servers: int) -> int:
    """Keys that workers make between the gradients' and the slices'."""
    return ROW + MEETINGS + probes(servers)


def most_elements(servers: int, bigarray: int) -> int:
    """The most elements of a slice, which belongs on one server: MXNet spreads arrays from ``bigarray`` elements on."""
    return max(1, bigarray - 1) if servers > 1 else MOST


def has_chosen_key(size: int, parts: int, unit: int, servers: int, spread: bool) -> bool:
    """Whether a gradient of ``size`` bytes, in ``parts`` units of about ``unit`` bytes, travels under keys that are chosen for it. A whole
    one does if it is too large for a group, and if there is a server to choose: MXNet does not ``spread`` it over all of several."""
    return parts > 1 or servers > 1 and not spread and 0 < unit < 2 * size


def even_servers(slices: Sequence[int], loads: Sequence[int], message: int = 0) -> List[int]:
    """The server of each slice or group, so that the servers have about as much to do each.

    Each of ``slices`` (bytes, most urgent first) goes to the server that has the least so far. Of equals, it goes to the one chosen
    longest ago, so that neighbours are on different servers. ``message`` is what each counts besides its bytes: the bytes that a link
    carries in the time of a message. ``loads`` is what each server has already, without gradients that are spread over all servers. In the
    end, a server with a slice has at most the largest slice, and a message, more to do than any other. Cost O(n log n).

    Where servers have a unit or two each, largest first would even out the bytes better. But it puts several of the most urgent units on
    one server. They become ready last, and the next forward waits for them: with 64 workers up to 10% longer, simulated.

    >>> even_servers([4, 4, 4, 4], [0, 6])
    [0, 0, 1, 0]
    >>> even_servers([4, 4, 9], [0, 0])
    [0, 1, 0]
    """
    heap = [(load, -1, server) for server, load in enumerate(loads)]
    heapq.heapify(heap)
    chosen = []
    for place, size in enumerate(slices):
        load, _, server = heap[0]
        heapq.heapreplace(heap, (load + size + message, place, server))
        chosen.append(server)
    return chosen


def slice_numbers(slices: Sequence[int], loads: Sequence[int], numbers: Iterable[int], message: int = 0) -> List[int]:
    """The number of each slice's key: the first of ``numbers`` that MXNet has on the slice's server (see :func:`even_servers`).

    Numbers are skipped if no slice needs their servers any more. If over SURE would be skipped, or ``numbers`` end, the remaining slices
    take skipped numbers. ``numbers`` has at least one for each slice that MXNet can place.
    """
    wanted: Dict[Optional[int], List[int]] = {}  # slices that have no number yet, by server, the most urgent last
    servers = even_servers(slices, loads, message)
    for place in reversed(range(len(slices))):
        wanted.setdefault(servers[place], []).append(place)
    chosen = [-1] * len(slices)
    left = len(slices)
    skipped: List[int] = []
    for number in numbers:
        server = server_of(number, len(loads))
        places = wanted.get(server)
        if places:
            chosen[places.pop()] = number
            left -= 1
        elif server is not None:
            skipped.append(number)
        if not left or len(skipped) > SURE:
            break
    rest = iter(skipped)
    return [next(rest) if number < 0 else number for number in chosen]
