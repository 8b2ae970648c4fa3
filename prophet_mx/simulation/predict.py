"""Predicts the time of an iteration, and whether scheduling can help at all: ``prophet-mx predict``.

A prediction is a simulation (:mod:`prophet_mx.simulation.simulator`) of a recorded profile on a cluster of the given rate, put beside the
lower bound. Whether scheduling helps is read from the predicted times, never from rho alone: the gain also depends on where a
model's large gradients are. What a prediction can be wrong by is known from the testbed (``benchmarks/predictions.py``), so a
gain below that is called none.
"""

import json
import math
from dataclasses import dataclass, fields
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..errors import ConfigError
from ..planning.bound import communication_seconds, worker_rate
from ..planning.placement import BIGARRAY_BOUND
from ..profiling.gradient_profile import GradientProfile
from .cluster import Cluster
from .layout import PLAIN, default_units
from .simulator import POLICIES, Result, need_policy, simulate

__all__ = ["COSTS", "MARGIN", "Prediction", "Verdict", "load_costs", "predict", "predicted_seconds", "useful_rates"]

MARGIN = 0.04  # share of an iteration's time: predictions are wrong by about that, in the median
ITERATIONS, WARMUP = 4, 4  # simulated; iterations are alike after two or three
RHOS = tuple(2.0 ** (power / 2) for power in range(-8, 9))  # at which useful_rates looks: 1/16 to 16
COSTS: Mapping[str, float] = {}  # what messages cost unless given, by field of Cluster: nothing


def predicted_result(
    profile: GradientProfile,
    rate: float,
    workers: int = 2,
    servers: int = 1,
    policy: str = "prophet",
    *,
    costs: Optional[Mapping[str, float]] = None,
    bigarray: int = BIGARRAY_BOUND,
) -> Result:
    """The simulation behind :func:`predicted_seconds`, with the same arguments."""
    cluster = Cluster(bandwidth=rate, workers=workers, servers=servers, **(COSTS if costs is None else costs))
    need_policy(policy)
    units = default_units(profile, cluster, policy, bigarray)
    return simulate(profile, cluster, policy, units, iterations=ITERATIONS, warmup=WARMUP)


def predicted_seconds(
    profile: GradientProfile,
    rate: float,
    workers: int = 2,
    servers: int = 1,
    policy: str = "prophet",
    *,
    costs: Optional[Mapping[str, float]] = None,
    bigarray: int = BIGARRAY_BOUND,
) -> float:
    """Seconds per iteration of a job with this profile.

    Parameters
    ----------
    profile : with compute times; see :mod:`prophet_mx.simulation.compute_times` for one that was recorded.
    rate : what TCP carries over every machine's link, each way (bytes/s).
    policy : one of :data:`prophet_mx.simulation.simulator.POLICIES`; ``plain`` is stock MXNet.
    costs : of messages, by field of :class:`~prophet_mx.simulation.cluster.Cluster` (seconds, bytes); None for :data:`COSTS`.
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
    return predicted_result(profile, rate, workers, servers, policy, costs=costs, bigarray=bigarray).seconds


def load_costs(path: str) -> Dict[str, float]:
    """Costs of messages from a JSON file: an object of fields of Cluster, or one that has such an object under "costs".

    Raises
    ------
    ConfigError
        the file cannot be read, or holds something else.
    """
    known = [field.name for field in fields(Cluster) if field.name not in ("bandwidth", "workers", "servers")]
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        found = found.get("costs", found)
        if set(found) <= set(known):
            Cluster(bandwidth=1e9, **found)
            return dict(found)
    except OSError as error:
        raise ConfigError(f"--costs {path!r} cannot be read: {error.strerror}") from None
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise ConfigError(f"--costs {path!r} is not allowed ({error}); allowed: a JSON object of {', '.join(known)}") from None
    raise ConfigError(f"--costs {path!r} is not allowed; allowed: a JSON object of {', '.join(known)}")


class Verdict(NamedTuple):
    """Whether scheduling helps, in words, and by how much: ``gain`` is the time with plain MXNet / the time of ``policy`` - 1."""

    helps: bool
    policy: str
    gain: float
    sentence: str


@dataclass(frozen=True)
class Prediction:
    """One cluster's prediction. Times are seconds per iteration; ``seconds`` is by policy, in the order asked for, and always has
    ``plain``. ``rate`` is that of a machine's link (bytes/s)."""

    rate: float
    workers: int
    servers: int
    compute: float
    communication: float
    bound: float
    seconds: Mapping[str, float]

    @property
    def rho(self) -> float:
        """Communication time / compute time."""
        return self.communication / self.compute if self.compute else math.inf

    @property
    def verdict(self) -> Verdict:
        """Whether scheduling helps. Of policies within 1% of the fastest the default one is named."""
        plain = self.seconds[PLAIN]
        scheduled = {name: seconds for name, seconds in self.seconds.items() if name != PLAIN}
        best = min(scheduled, key=lambda name: (scheduled[name], name), default=PLAIN)
        if scheduled.get("prophet", math.inf) <= 1.01 * self.seconds[best]:
            best = "prophet"
        gain = plain / self.seconds[best] - 1 if self.seconds[best] else 0.0
        return Verdict(gain >= MARGIN, best, gain, self._sentence(best, gain))

    def _sentence(self, best: str, gain: float) -> str:
        plain, fastest = milliseconds(self.seconds[PLAIN]), milliseconds(self.seconds[best])
        if gain >= MARGIN:
            text = f"Scheduling helps: with {best} an iteration takes {fastest} instead of {plain}, {1 + gain:.2f} times as fast."
            idle = 1 - self.compute / self.seconds[best]
            if idle > 0.5:
                text += (
                    f" Workers still wait for the network {idle:.0%} of the time: less traffic (fp16, larger batches, "
                    "gradient compression), more servers or a faster network would gain more."
                )
            return text
        why = f"Scheduling cannot help here (predicted gain {max(gain, 0):.1%}, less than the {MARGIN:.0%} a prediction may be wrong by): "
        if self.seconds[PLAIN] <= self.compute * (1 + MARGIN):
            return why + (
                f"rho is {self.rho:.3g}, too small: the network's {milliseconds(self.communication)} hide behind "
                f"{milliseconds(self.compute)} of computing without it."
            )
        if self.seconds[PLAIN] <= self.bound * (1 + MARGIN):
            return why + (
                f"rho is {self.rho:.3g}, too large: the network is busy for {milliseconds(self.communication)} of "
                f"{plain} in any order of sending. What helps is less traffic (fp16, larger batches, gradient "
                "compression), more servers or a faster network."
            )
        return why + (
            f"an ideal link would take {milliseconds(self.bound)} instead of {plain}, but none of the policies comes "
            "near it on this cluster, because of what its messages cost or of how few gradients there are to "
            "choose from."
        )


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
    seconds: Dict[str, float] = {}
    bound = 0.0
    for policy in dict.fromkeys([PLAIN, *policies]):
        result = predicted_result(profile, rate, workers, servers, policy, costs=costs, bigarray=bigarray)
        seconds[policy], bound = result.seconds, result.bound
    communication = communication_seconds(profile, worker_rate(rate, workers, servers))
    return Prediction(rate, workers, servers, profile.compute_seconds, communication, bound, seconds)


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


def useful_rates(
    profile: GradientProfile,
    workers: int = 2,
    servers: int = 1,
    policy: str = "prophet",
    *,
    costs: Optional[Mapping[str, float]] = None,
    bigarray: int = BIGARRAY_BOUND,
) -> Optional[UsefulRates]:
    """Where scheduling this job pays, from predictions at rates from rho 1/16 to 16, a factor of 1.4 apart; None if nowhere."""
    share = worker_rate(1.0, workers, servers)
    gains: List[Tuple[float, float]] = []
    for rho in sorted(RHOS, reverse=True):
        rate = profile.total_bytes / (rho * profile.compute_seconds) / share
        plain, own = (predicted_seconds(profile, rate, workers, servers, name, costs=costs, bigarray=bigarray) for name in (PLAIN, policy))
        gains.append((plain / own - 1, rate))
    useful = [rate for gain, rate in gains if gain >= MARGIN]
    if not useful:
        return None
    gain, best = max(gains)
    return UsefulRates(useful[0], useful[-1], best, gain, useful[0] == gains[0][1], useful[-1] == gains[-1][1])


def milliseconds(seconds: float) -> str:
    """As printed.

    >>> milliseconds(0.16374), milliseconds(163.7)
    ('163.7 ms', '163,700 ms')
    """
    return f"{1e3 * seconds:.4g} ms" if seconds < 10 else f"{1e3 * seconds:,.0f} ms"


def as_dict(prediction: Prediction) -> Dict[str, Any]:
    """For JSON: seconds, bytes/s."""
    verdict = prediction.verdict
    return {
        "bandwidth": prediction.rate,
        "workers": prediction.workers,
        "servers": prediction.servers,
        "rho": prediction.rho,
        "compute_seconds": prediction.compute,
        "communication_seconds": prediction.communication,
        "bound_seconds": prediction.bound,
        "seconds": dict(prediction.seconds),
        "verdict": {"helps": verdict.helps, "policy": verdict.policy, "gain": verdict.gain, "sentence": verdict.sentence},
    }
