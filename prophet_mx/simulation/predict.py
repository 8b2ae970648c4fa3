"""Predicts the time of an iteration, and whether scheduling can help at all: ``prophet-mx predict``.

A prediction is a simulation (:mod:`prophet_mx.simulation.simulator`) of a recorded profile on a cluster of the given rate, put beside the
lower bound. Whether scheduling helps is read from the predicted times, never from rho alone: the gain also depends on where a
model's large gradients are. What a prediction can be wrong by is known from the testbed (``benchmarks/validate_simulator.py``), so a
gain below that is called none. What it says in words is in :mod:`prophet_mx.simulation.verdict`.
"""

import json
import math
from dataclasses import dataclass, fields, replace
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..errors import ConfigError, not_allowed
from ..planning.bound import communication_seconds, worker_rate
from ..planning.halves import halves_pay
from ..planning.placement import BIGARRAY_BOUND
from ..policies import DEFAULT
from ..profiling.gradient_profile import GradientProfile
from ..user_files import read_text
from .cluster import PLAIN, Cluster, busiest_share, connection_rate, default_units
from .simulator import POLICIES, Result, need_policy, simulate

__all__ = ["MARGIN", "Prediction", "load_costs", "predict", "predict_cluster", "predicted_seconds", "useful_rates"]

MARGIN = 0.04  # share of an iteration's time: most predictions are wrong by less
WORST = 0.22  # and none of those that were compared with measured times by more
ITERATIONS, WARMUP = 4, 4  # simulated unless asked for; iterations are alike after two or three
NO_COSTS = ("bandwidth", "workers", "servers", "port_bytes", "hosts", "burst_bytes")  # fields of Cluster that say what its network is
RHOS = tuple(2.0 ** (power / 2) for power in range(-8, 9))  # at which useful_rates looks: 1/16 to 16


def predicted_seconds(
    profile: GradientProfile,
    rate: float,
    workers: int = 2,
    servers: int = 1,
    policy: str = DEFAULT,
    *,
    costs: Optional[Mapping[str, float]] = None,
    bigarray: int = BIGARRAY_BOUND,
) -> float:
    """Seconds per iteration of a job with this profile.

    Parameters
    ----------
    profile : with compute times; see :mod:`prophet_mx.profiling.compute_times` for one that was recorded.
    rate : what TCP carries over every machine's link, each way (bytes/s).
    policy : one of :data:`prophet_mx.simulation.simulator.POLICIES`; ``plain`` is stock MXNet.
    costs : of messages, by field of :class:`~prophet_mx.simulation.cluster.Cluster` (seconds, bytes); None: they cost nothing.
    bigarray : elements from which MXNet splits an array over all servers (MXNET_KVSTORE_BIGARRAY_BOUND).

    Raises
    ------
    ProfileError
        the profile lacks compute times.
    ConfigError
        another argument is not allowed.

    >>> from prophet_mx.profiling.gradient_profile import Gradient
    >>> profile = GradientProfile("one layer", [Gradient("weight", 10**6, forward=0.01, backward=0.02)], [[0]])
    >>> round(predicted_seconds(profile, 1e8, policy="plain"), 6)
    0.07
    """
    return _simulated(profile, _cluster(rate, workers, servers, costs), policy, bigarray).seconds


def _cluster(rate: float, workers: int, servers: int, costs: Optional[Mapping[str, float]]) -> Cluster:
    named: Mapping[str, Any] = costs or {}
    return Cluster(bandwidth=rate, workers=workers, servers=servers, **named)


def _simulated(profile: GradientProfile, cluster: Cluster, policy: str, bigarray: int = BIGARRAY_BOUND, **options: Any) -> Result:
    need_policy(policy)
    units = default_units(profile, cluster, policy, bigarray)
    return simulate(profile, cluster, policy, units, **{"iterations": ITERATIONS, "warmup": WARMUP, **options})


def load_costs(path: str) -> Dict[str, float]:
    """Costs of messages from a JSON file: an object of fields of Cluster, or one that has such an object under "costs".

    Raises
    ------
    ConfigError
        the file cannot be read, or holds something else.
    """
    known = [field.name for field in fields(Cluster) if field.name not in NO_COSTS]
    try:
        found = json.loads(read_text(path, pipes=True))
        if isinstance(found, dict):
            found = found.get("costs", found)
        if isinstance(found, dict) and set(found) <= set(known):
            Cluster(bandwidth=1e9, **found)
            return dict(found)
    except OSError as error:
        raise ConfigError(f"--costs {path!r} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(not_allowed(f"--costs {path!r}", f"a JSON object of {', '.join(known)}", f" ({error})")) from None
    raise ConfigError(not_allowed(f"--costs {path!r}", f"a JSON object of {', '.join(known)}"))


@dataclass(frozen=True)
class Prediction:
    """One cluster's prediction. Times are seconds per iteration. ``compute`` is that of the slowest worker, ``communication`` what an
    iteration's bytes take on a worker's share of the links, ``results`` by policy in the order asked for, always with ``plain``.
    ``busiest``, also by policy, is how many times its share the busiest server carries. ``halved`` is the default policy's result with
    gradients in 16 bits, if that policy was asked for, and if they pay."""

    cluster: Cluster
    compute: float
    communication: float
    results: Mapping[str, Result]
    busiest: Mapping[str, float]
    halved: Optional[Result] = None

    @property
    def seconds(self) -> Dict[str, float]:
        """By policy."""
        return {policy: result.seconds for policy, result in self.results.items()}

    @property
    def bound(self) -> float:
        """What no order of sending can beat."""
        return self.results[PLAIN].bound

    @property
    def rho(self) -> float:
        """Communication time / compute time."""
        return self.communication / self.compute if self.compute else math.inf

    @property
    def best(self) -> str:
        """The policy to compare with ``plain``: the fastest, or the default one if that is too near for a prediction to tell."""
        scheduled = {name: seconds for name, seconds in self.seconds.items() if name != PLAIN}
        best = min(scheduled, key=lambda name: (scheduled[name], name), default=PLAIN)
        return DEFAULT if scheduled.get(DEFAULT, math.inf) <= (1 + MARGIN / 2) * self.seconds[best] else best

    @property
    def gain(self) -> float:
        """Time with plain MXNet / time with the policy :attr:`best` - 1."""
        return self.speedup(self.best) - 1

    def speedup(self, policy: str) -> float:
        """Time with plain MXNet / time with this policy."""
        seconds = self.seconds[policy]
        return self.seconds[PLAIN] / seconds if seconds else 1.0

    def stall(self, policy: str) -> float:
        """Seconds of an iteration in which the slowest worker does not compute."""
        return max(0.0, self.seconds[policy] - self.compute)


def predict_cluster(
    profile: GradientProfile, cluster: Cluster, policies: Sequence[str] = POLICIES, *, bigarray: int = BIGARRAY_BOUND, **options: Any
) -> Prediction:
    """Predict every policy, and ``plain`` to compare with; ``options`` are ``iterations``, ``warmup`` and ``seed`` of
    :func:`~prophet_mx.simulation.simulator.simulate`. Errors are those of :func:`predicted_seconds`."""
    results = {policy: _simulated(profile, cluster, policy, bigarray, **options) for policy in dict.fromkeys([PLAIN, *policies])}
    communication = communication_seconds(profile, worker_rate(cluster.bandwidth, cluster.workers, cluster.servers))
    busiest = {policy: busiest_share(default_units(profile, cluster, policy, bigarray), cluster.servers) for policy in results}
    halved = None
    if DEFAULT in results and halves_pay(connection_rate(cluster), cluster.workers):
        halved = _simulated(profile.halved(), cluster, DEFAULT, bigarray, **options)
    return Prediction(cluster, profile.compute_seconds * cluster.straggler, communication, results, busiest, halved)


def predict(
    profile: GradientProfile,
    rate: float,
    workers: int = 2,
    servers: int = 1,
    policies: Sequence[str] = POLICIES,
    *,
    costs: Optional[Mapping[str, float]] = None,
    bigarray: int = BIGARRAY_BOUND,
) -> Prediction:
    """Predict every policy, and ``plain`` to compare with; arguments and errors are those of :func:`predicted_seconds`."""
    return predict_cluster(profile, _cluster(rate, workers, servers, costs), policies, bigarray=bigarray)


class UsefulRates(NamedTuple):
    """Rates of a link (bytes/s) between which a policy gains at least :data:`MARGIN`, and where it gains most.

    ``open_below`` and ``open_above``: it gains as much at the ends of what was looked at, too.
    """

    low: float
    high: float
    best: float
    gain: float
    open_below: bool
    open_above: bool


def useful_rates(profile: GradientProfile, cluster: Cluster, policy: str = DEFAULT, **options: Any) -> Optional[UsefulRates]:
    """Where scheduling this job pays, from predictions at rates from rho 1/16 to 16, a factor of 1.4 apart, on clusters that are otherwise
    like ``cluster``; None if nowhere. ``options`` and errors are those of :func:`predict_cluster`."""
    share = worker_rate(1.0, cluster.workers, cluster.servers)
    gains: List[Tuple[float, float]] = []
    for rho in sorted(RHOS, reverse=True):
        rate = profile.total_bytes / (rho * profile.compute_seconds) / share
        at_rate = replace(cluster, bandwidth=rate)
        plain, own = (_simulated(profile, at_rate, name, **options).seconds for name in (PLAIN, policy))
        gains.append((plain / own - 1, rate))
    useful = [rate for gain, rate in gains if gain >= MARGIN]
    if not useful:
        return None
    gain, best = max(gains)
    return UsefulRates(useful[0], useful[-1], best, gain, useful[0] == gains[0][1], useful[-1] == gains[-1][1])
