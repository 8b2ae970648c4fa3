"""A prediction in words: rho, stall, gain, and why scheduling helps or cannot help."""

from typing import List, NamedTuple, Optional

from ..policies import DEFAULT
from ..quantities import format_rate
from .cluster import DROP, PLAIN, Cluster
from .predict import MARGIN, Prediction, UsefulRates

CROWDED = 1.5  # times its share that a server carries: its link is then what the job waits for, rather than all links
MOSTLY = 0.5  # share of an iteration: workers that wait longer would gain more by less traffic
LESS_TRAFFIC = "less traffic (compress='fp16', larger batches), more servers or a faster network"
NO_HELP = "Scheduling cannot help here, because"


class Verdict(NamedTuple):
    """Whether scheduling helps, in words, and by how much: ``gain`` is the time with plain MXNet / the time of ``policy`` - 1."""

    helps: bool
    policy: str
    gain: float
    sentence: str


def verdict(prediction: Prediction) -> Verdict:
    """Whether scheduling helps on this cluster, and why."""
    best, gain = prediction.best, prediction.gain
    if best == PLAIN:
        return Verdict(False, best, gain, f"No scheduling policy was requested: add --policy {DEFAULT} to compare.")
    if gain < MARGIN:
        return Verdict(False, best, gain, _why_not(prediction))
    plain, fastest = (milliseconds(prediction.seconds[policy]) for policy in (PLAIN, best))
    text = f"Scheduling helps: with {best} an iteration takes {fastest} instead of {plain}, {1 + gain:.2f} times as fast"
    text += _default(prediction) + "."
    left = prediction.stall(best) / prediction.seconds[best]
    if left > MOSTLY:
        text += f" Workers still wait for the network {left:.0%} of the time: {LESS_TRAFFIC} would gain more."
    return Verdict(True, best, gain, text)


def _why_not(prediction: Prediction) -> str:
    """What to say if none of the policies that were asked for helps."""
    plain, best = prediction.seconds[PLAIN], prediction.best
    if plain <= prediction.compute * (1 + MARGIN):
        return (
            f"{NO_HELP} the network is fast enough: rho is {prediction.rho:.3g}, and even without it "
            f"{milliseconds(prediction.communication)} of sending hide behind {milliseconds(prediction.compute)} of computing."
        )
    if plain <= prediction.bound * (1 + MARGIN):
        return (
            f"{NO_HELP} the network is too slow for any order of sending: rho is {prediction.rho:.3g}, and the links are busy for "
            f"{milliseconds(prediction.communication)} of the {milliseconds(plain)} that an iteration takes. What helps: {LESS_TRAFFIC}."
        )
    if DEFAULT not in prediction.results:  # it may help
        return (
            f"{best} does not help here: an iteration takes {milliseconds(prediction.seconds[best])} instead of {milliseconds(plain)}. An "
            f"ideal link would take {milliseconds(prediction.bound)}: add --policy {DEFAULT} to see what the default policy gains."
        )
    return (
        f"{NO_HELP} no policy comes near the {milliseconds(prediction.bound)} that an ideal link would take instead of "
        f"{milliseconds(plain)}: messages cost too much on this cluster, or there are too few gradients to choose from."
    )


def facts(prediction: Prediction) -> List[str]:
    """What the verdict rests on, a line each: rho, stall, gain; and the busiest server, where that is why plain dist_sync is slow."""
    best, bound = prediction.best, prediction.bound
    plain, fastest = prediction.seconds[PLAIN], prediction.seconds[best]
    stall = f"stall  {_share(prediction.stall(PLAIN), plain)} of an iteration with plain dist_sync"
    if best != PLAIN:
        stall += f", {_share(prediction.stall(best), fastest)} with {best}"
    gain = f"gain   {plain / fastest:.2f} times as fast with {best}{_default(prediction)}; " if best != PLAIN and fastest else "gain   "
    most = f"{plain / bound:.2f} times is the most that any order of sending can give ({milliseconds(bound)})" if bound else "none"
    rho = (
        f"rho    {prediction.rho:.3g}: an iteration sends for {milliseconds(prediction.communication)} "
        f"and computes for {milliseconds(prediction.compute)}"
    )
    return [rho, stall, gain + most, *_crowd(prediction), *_halves(prediction)]


def _halves(prediction: Prediction) -> List[str]:
    """What 16 bits on the wire would give, where that is more than any order does."""
    halved, fastest = prediction.halved, prediction.seconds[prediction.best]
    if halved is None or fastest <= (1 + MARGIN) * halved.seconds:
        return []
    plain = prediction.seconds[PLAIN]
    line = f"fp16   {plain / halved.seconds:.2f} times as fast with compress='fp16', which sends half the bytes "
    return [line + f"({milliseconds(halved.seconds)}), with weights that are close to the same"]


def _default(prediction: Prediction) -> str:
    """The speed with the policy that a job has without a setting, if another is the best."""
    if prediction.best == DEFAULT or DEFAULT not in prediction.results:
        return ""
    return f", and {prediction.speedup(DEFAULT):.2f} times with {DEFAULT}, the default"


def _crowd(prediction: Prediction) -> List[str]:
    """Why scheduling can gain even where all links together have time to spare."""
    shares, best = prediction.busiest, prediction.best
    if best == PLAIN or shares[PLAIN] < CROWDED:
        return []
    line = f"server the busiest carries {shares[PLAIN]:.1f} times its share with plain dist_sync, which keeps each small gradient on one; "
    return [line + f"with {best} {shares[best]:.1f} times"]


def _share(part: float, whole: float) -> str:
    return f"{milliseconds(part)} ({part / whole if whole else 0:.0%})"


def described(cluster: Cluster) -> str:
    """A cluster's machines and links.

    >>> described(Cluster(1.25e9, workers=8, servers=1))
    '8 workers, 1 server, links of 10 Gbit/s'
    """
    ports = f", ports of {cluster.port_bytes / 1e3:,.5g} KB" if cluster.port_bytes else ""
    return f"{_machines(cluster)}, links of {format_rate(cluster.bandwidth)}{ports}{', hosts drop too' if cluster.hosts == DROP else ''}"


def _machines(cluster: Cluster) -> str:
    counts = ((cluster.workers, "worker"), (cluster.servers, "server"))
    return ", ".join(f"{count} {what}{'' if count == 1 else 's'}" for count, what in counts)


def where(useful: Optional[UsefulRates], cluster: Cluster) -> str:
    """At which bandwidths scheduling pays, in a sentence. What the cluster's own bandwidth is does not matter."""
    job = f"For this job with {_machines(cluster)}"
    if useful is None:
        return f"{job}, no bandwidth was found at which the policy {DEFAULT} gains {MARGIN:.0%}."
    low = _rounded(useful.low) + (", the lowest looked at," if useful.open_below else "")
    high = _rounded(useful.high) + (", the highest looked at" if useful.open_above else "")
    return (
        f"{job}, the policy {DEFAULT} gains {MARGIN:.0%} or more at bandwidths from {low} to {high}, and most, {useful.gain:.0%}, "
        f"at about {_rounded(useful.best)}."
    )


def _rounded(rate: float) -> str:
    return format_rate(float(f"{8 * rate:.2g}") / 8)


def milliseconds(seconds: float) -> str:
    """As printed.

    >>> milliseconds(0.16374), milliseconds(163.7)
    ('163.7 ms', '163,700 ms')
    """
    return f"{round(1e3 * seconds, 2):.4g} ms" if seconds < 10 else f"{1e3 * seconds:,.0f} ms"
