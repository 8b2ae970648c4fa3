"""The lower bound of an iteration's time, and the ideal schedule that reaches it.

The *ideal link* is fluid (any byte can go at any moment), preemptive (a more urgent byte interrupts at once), full duplex,
and free of overhead and delay: the answer to a byte arrives as the byte leaves. It carries ``rate`` bytes/s of one worker
and always sends the most urgent ready byte. :func:`lower_bound` is the time per iteration over such a link.

No schedule gives less:

1. The next forward reads every parameter before the next backward starts, so when a backward starts nothing is in flight.
   Iterations are alike from one start of backward to the next, and it is enough to look at one of them.
2. Take the i + 1 most urgent gradients. The ideal link works on them whenever one of them is ready and not sent, since they
   interrupt all others. A link of the same rate that has sent all of them earlier would have to send faster or before they
   were ready. So C(i), when all of gradients 0 to i have been sent, is the least possible, for every i at once.
   (Exchange argument: give the time that any schedule spends on these gradients, or idles while one of them is ready, to the
   most urgent of them in turn; no C(j) with j <= i becomes later.)
3. Layer i's forward needs parameter i and the forward of the layers before it. It ends at the largest, over j <= i, of
   max(B, C(j)) + forward time of layers j to i, where B is the end of backward. That never falls when a C(j) rises, so it is
   least when all C(j) are. The last layer's end is where the next backward starts; by induction, so is every later one.

What is bounded is one worker with exactly the profile's compute times, whose every byte passes a link of ``rate`` bytes/s on
its way. Workers that share servers are bounded the same way with their equal share of the busiest link
(:func:`worker_rate`): a parameter's value needs the bytes of all W workers through the servers' links, and W workers' bytes
at W times the rate take as long as one worker's bytes at the rate, however unequally the link divides itself. It holds wherever
the bytes are: S links carry no more together than S times what one carries.

Workers that compute at different speeds are bounded twice, and the larger bound holds (:func:`job_bound`). All workers' bytes pass the
servers' links, no earlier than if all workers were as fast as the fastest of that iteration: then all share evenly. And each worker's own
bytes pass its own link. A slow worker alone has no share that it must keep to: while the others have nothing to send, it has the servers'
links for itself.

No server's link alone bounds the iteration: slices, groups and large whole gradients can have their keys on any server.
"""

import heapq
import math
from itertools import accumulate
from typing import Dict, List, NamedTuple, Sequence, Tuple

from ..errors import ConfigError, need_whole, not_allowed
from ..profiling.gradient_profile import GradientProfile
from ..profiling.steps import finite


class Sending(NamedTuple):
    """A time in which the ideal link sends nothing but bytes of one gradient (its index); start and end in seconds."""

    gradient: int
    start: float
    end: float


def worker_rate(goodput: float, workers: int, servers: int) -> float:
    """One worker's bytes/s when ``workers`` share evenly the links of ``servers``, every link carrying ``goodput`` bytes/s
    each way: the worker's own link, or its share of the servers' if that is less.

    >>> worker_rate(118e6, workers=2, servers=1)
    59000000.0
    """
    rate = _checked_rate(goodput)
    need_whole("servers", servers, 1)
    need_whole("workers", workers, 1)
    return rate * min(1.0, servers / workers)


def ring_rate(link: float, ranks: int) -> float:
    """Bytes/s of gradients that a ring of ``ranks`` reduces if each rank's link carries ``link`` bytes/s each way: every byte passes each
    link 2 (N - 1) / N times.

    >>> ring_rate(120e6, 2), ring_rate(120e6, 4)
    (120000000.0, 80000000.0)
    """
    rate = _checked_rate(link)
    need_whole("ranks", ranks, 2)
    return rate * ranks / (2 * (ranks - 1))


def communication_seconds(profile: GradientProfile, rate: float) -> float:
    """Seconds that one iteration's bytes take at ``rate`` bytes/s."""
    return profile.total_bytes / _checked_rate(rate)


def rho(profile: GradientProfile, rate: float) -> float:
    """Communication time / compute time at ``rate`` bytes/s: scheduling matters most near 1. ProfileError without compute."""
    compute = profile.compute_seconds
    return communication_seconds(profile, rate) / compute if compute else math.inf


def scaled_to_rho(profile: GradientProfile, rate: float, target: float) -> GradientProfile:
    """The profile with its sizes scaled so that ``rho`` is ``target`` at ``rate`` bytes/s, its times as they are.

    Sizes stay whole words of 4 bytes. ProfileError without compute times or if the target is not positive.
    """
    ratio = rho(profile, rate)
    return profile.scaled(size=(finite(target) or 0.0) / ratio)


def lower_bound(profile: GradientProfile, rate: float) -> float:
    """Seconds per iteration, in steady state, that no schedule of the profile's gradients over ``rate`` bytes/s can beat.

    It is never less than the compute time nor than the communication time, and usually more than both. The proof is at the top of this
    module. Cost O(n log n) for n gradients.

    Raises ProfileError if the profile lacks compute times, and ConfigError if the rate is not positive and finite.
    """
    releases = profile.backward_ready_times()
    computing = profile.compute_times()
    left = list(accumulate(forward for forward, _ in reversed(computing)))[::-1]  # seconds of forward from each layer on
    seconds = math.fsum(backward for _, backward in computing) + left[0]
    rate = _checked_rate(rate)
    sent = sendings(releases, [gradient.bytes / rate for gradient in profile.gradients])
    return max(seconds, max(sending.end + left[sending.gradient] for sending in sent))


def job_bound(profile: GradientProfile, own: float, shared: float, factors: Sequence[Sequence[float]]) -> float:
    """Seconds per iteration, the mean over some iterations, that no schedule of a job can beat whose workers may be unequal.

    Parameters
    ----------
    profile : of a worker that computes as fast as usual.
    own : what a worker's own link carries (bytes/s).
    shared : a worker's equal share of the links that all use (bytes/s); see :func:`worker_rate`.
    factors : of the compute times, of each worker for each iteration.

    Both bounds add up over iterations: that of the shared links from the earliest start of a backward to the next earliest, that of a
    worker's own from start to start of this worker.
    """
    known: Dict[Tuple[float, float], float] = {}

    def least(factor: float, rate: float) -> float:
        if (factor, rate) not in known:
            compute = profile.compute_seconds
            scaled = profile.scaled(compute=compute * factor) if compute and factor != 1 else profile
            known[factor, rate] = lower_bound(scaled, rate)
        return known[factor, rate]

    together = [least(min(of_all), shared) for of_all in zip(*factors)]
    alone = [[least(factor, own) for factor in of_one] for of_one in factors]
    return max(math.fsum(times) / len(times) for times in [together, *alone])


def finishing_order(releases: Sequence[float], durations: Sequence[float]) -> List[int]:
    """Pieces of work, most urgent first, in the order in which preemptive strict priority finishes them: piece i is there from
    ``releases[i]`` on and takes ``durations[i]``."""
    last = {sending.gradient: place for place, sending in enumerate(sendings(releases, durations))}
    return sorted(last, key=last.__getitem__)


def _checked_rate(rate: float) -> float:
    number = finite(rate)
    if number is None or number <= 0:
        raise ConfigError(not_allowed(f"rate={rate!r}", "a positive, finite number of bytes/s"))
    return number


def sendings(releases: Sequence[float], durations: Sequence[float]) -> List[Sending]:
    """What an ideal link sends when, in order of time, by preemptive strict priority: at every moment the piece of work of the least index
    that is there. Piece i is there from ``releases[i]`` on and takes ``durations[i]``; it has several entries if others interrupted it."""
    left = list(durations)
    arrivals = sorted(range(len(left)), key=releases.__getitem__, reverse=True)
    ready: List[int] = []
    sent: List[Sending] = []
    clock = 0.0
    while arrivals or ready:
        if not ready:
            clock = max(clock, releases[arrivals[-1]])
        while arrivals and releases[arrivals[-1]] <= clock:
            heapq.heappush(ready, arrivals.pop())
        current = ready[0]
        end = clock + left[current]
        if arrivals and releases[arrivals[-1]] < end:
            end = releases[arrivals[-1]]
            left[current] -= end - clock
        else:
            heapq.heappop(ready)
        if sent and sent[-1].gradient == current and sent[-1].end == clock:
            sent[-1] = Sending(current, sent[-1].start, end)
        else:
            sent.append(Sending(current, clock, end))
        clock = end
    return sent
