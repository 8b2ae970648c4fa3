"""What an operator sees of a running job: log lines, a Prometheus endpoint, TensorBoard scalars.

All three show the numbers of :func:`between`: the change of the scheduler's counters from one sample to a later
one. Samples are taken in the caller's thread when an iteration begins, so the store is never called from two threads; the
endpoint's thread reads the newest sample, and is joined when the store is closed.
"""

import logging
import time
from typing import Any, Dict, Iterator, NamedTuple, Optional, Protocol, Sequence, Set, Tuple
from wsgiref.simple_server import make_server

from ..config import Config
from ..errors import ConfigError, KVStoreError, need_whole, not_allowed
from ..quantities import format_rate
from ..runtime import start_thread
from .endpoint_server import POLL_SECONDS, EndpointServer, QuietHandler

__all__ = ["Metrics", "PlainIterations", "Sample", "ScalarLogger", "between", "first_unit", "line", "set_up_logging", "utilisation"]

logger = logging.getLogger("prophet_mx")

SET_LINES = 5  # of the log about other parameters, at most: a job with buckets changes its set all the time
SET_NAMES = 4  # named per line
SAMPLE_SECONDS = 0.5  # between two samples for the endpoint: Prometheus asks every few seconds


class _WhenUnhandled(logging.StreamHandler):  # type: ignore[type-arg]    # generic from Python 3.11 on
    """Prints to stderr as long as the program has not set up logging itself."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


def set_up_logging(config: Config) -> None:
    """Set the logger ``prophet_mx`` to ``log_level``. Lines of statistics that a setting asks for are always shown.

    Without either setting nothing changes: the program configures its own logging.
    """
    level = config.log_level or ("info" if config.log_every else None)
    if level is None:
        return
    logger.setLevel(level.upper())
    if not any(isinstance(handler, _WhenUnhandled) for handler in logger.handlers):
        handler = _WhenUnhandled()
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s: %(message)s"))
        logger.addHandler(handler)


class KeySets:
    """Which parameters each iteration of one worker pushes, and a log line when that changes: buckets, frozen layers, parameters added
    later. Called by the thread that pushes."""

    def __init__(self) -> None:
        self._before: Optional[Set[str]] = None
        self._lines = 0

    def iteration_ends(self, iteration: int, pushed: Set[str]) -> None:
        """The iteration of this number has pushed these, and pushes nothing more."""
        before, self._before = self._before, pushed
        if before is None or before == self._before or self._lines >= SET_LINES:
            return
        self._lines += 1
        missing, added = before - self._before, self._before - before
        changes = [
            f"{len(names)} {what} ({', '.join(sorted(names)[:SET_NAMES])}{', ...' if len(names) > SET_NAMES else ''})"
            for names, what in ((missing, "no longer"), (added, "that it did not push before"))
            if names
        ]
        logger.info(
            "iteration %d pushed %d parameters: %s; nothing waits for a parameter that is not pushed%s",
            iteration,
            len(self._before),
            " and ".join(changes),
            "" if self._lines < SET_LINES else "; further changes are not logged",
        )


class Counting(Protocol):
    """A source of counters: a :class:`prophet_mx._core.Driver`, or an adapter that has none."""

    def snapshot(self) -> Dict[str, Any]:
        """Counters and links at this moment, under the names of :meth:`prophet_mx._core.Driver.snapshot`; ``stalled_seconds``, and what
        there is of blocks, may be missing."""


class Sample(NamedTuple):
    """The counters at ``seconds`` (a monotonic clock), when the caller's iteration ``iteration`` began."""

    seconds: float
    iteration: int
    state: Dict[str, Any]  # as Counting.snapshot gives it


def between(earlier: Sample, later: Sample) -> Dict[str, float]:
    """What happened from one sample to a later one.

    Keys: ``iteration_seconds``, ``bytes``, ``units`` and ``blocks`` released, all per iteration; ``stalled_seconds`` (that the program
    has waited for gradients, per iteration); ``blocks`` and ``stalled_seconds`` only where they are counted; ``unit_wait_seconds`` (mean
    over units, from ready to released); ``first_wait_seconds`` (mean, from ready to answered of the most urgent unit);
    ``first_ahead_bytes`` (mean, unanswered on its link when that became ready: what was in front of it); ``utilisation`` (share of
    the link used while there was something to send, 0 to 1); ``link_rate`` (bytes/s to a server, mean over the servers, as measured last).

    Where the counters have ``iterations``, these are counted: those whose gradients have begun to become ready. The caller may be ahead of
    them by as many as MXNet's engine lets it.
    """

    iterations = max(1, done(earlier, later))
    state = _grown(earlier.state, later.state)
    first = first_unit(state)
    return {
        "iteration_seconds": (later.seconds - earlier.seconds) / iterations,
        **{name: state[name] / iterations for name in ("bytes", "units", "blocks", "stalled_seconds") if name in state},
        "unit_wait_seconds": state["wait_seconds"] / max(1, state["units"]),
        "first_wait_seconds": first["first_wait"],
        "first_ahead_bytes": first["first_ahead"],
        "utilisation": utilisation(state["links"]),
        "link_rate": sum(link["rate"] for link in state["links"]) / max(1, len(state["links"])),
    }


def done(earlier: Sample, later: Sample) -> int:
    """How many iterations there were from one sample to a later one."""
    if "iterations" in earlier.state and "iterations" in later.state:
        return int(later.state["iterations"] - earlier.state["iterations"])
    return later.iteration - earlier.iteration


def _grown(earlier: Dict[str, Any], later: Dict[str, Any]) -> Dict[str, Any]:
    """The state ``later`` as if it had been counted from ``earlier`` on."""
    links = [
        {**new, **{name: new[name] - old[name] for name in ("backlog_seconds", "backlog_bytes")}}
        for old, new in zip(earlier["links"], later["links"])
    ]
    return {**{name: later[name] - earlier[name] for name in later if name != "links"}, "links": links}


def first_unit(state: Dict[str, Any]) -> Dict[str, float]:
    """How the most urgent units fared, of a state: means of ``first_wait`` (seconds, from ready to answered) and of ``first_ahead``
    (bytes unanswered on its link when it became ready)."""
    answers = max(1, state["first_answers"])
    return {"first_wait": state["first_seconds"] / answers, "first_ahead": state["first_ahead"] / answers}


def utilisation(links: Sequence[Dict[str, Any]]) -> float:
    """Share of the links, as a state has them, that was used while there was something to send: 0 to 1."""
    could = sum(link["backlog_seconds"] * link["rate"] for link in links)
    return min(1.0, sum(link["backlog_bytes"] for link in links) / could) if could > 0 else 0.0


def line(earlier: Sample, later: Sample) -> str:
    """:func:`between` as one line of a log."""
    found = between(earlier, later)
    blocks = f" and {found['blocks']:.0f} blocks" if "blocks" in found else ""
    stalled = f", the program waited {1e3 * found['stalled_seconds']:.1f} ms for gradients" if "stalled_seconds" in found else ""
    return (
        f"iterations {earlier.iteration} to {later.iteration}: {1e3 * found['iteration_seconds']:.1f} ms each{stalled}, "
        f"{found['bytes'] / 1e6:.2f} MB in {found['units']:.0f} units{blocks}, "
        f"a unit waited {1e3 * found['unit_wait_seconds']:.1f} ms, the most urgent was answered after "
        f"{1e3 * found['first_wait_seconds']:.1f} ms with {found['first_ahead_bytes'] / 1e3:.0f} KB in front of it, "
        f"links {100 * found['utilisation']:.0f}% used, {format_rate(found['link_rate'])} each"
    )


class Metrics:
    """The log lines and the endpoint of one worker, as its settings ask for. One call per iteration; without both it does nothing.

    Raises ConfigError if the endpoint needs a package that is not installed, or cannot listen, and KVStoreError if its thread cannot be
    started.
    """

    def __init__(self, config: Config, rank: int) -> None:
        self._every = config.log_every
        self._logged: Optional[Sample] = None
        self._endpoint = Endpoint(config, rank) if config.metrics_port is not None else None

    def policy_known(self, policy: str) -> None:
        """The policy is another than in the settings; before the first iteration."""
        if self._endpoint is not None:
            self._endpoint.policy = policy

    def iteration(self, number: int, counting: Counting) -> None:
        """The caller's iteration ``number`` begins."""
        if not self._every and self._endpoint is None:
            return
        now = time.monotonic()
        due = self._logged is None or number - self._logged.iteration >= self._every
        if self._every and due:
            self._log(Sample(now, number, counting.snapshot()))
        if self._endpoint is not None:
            self._endpoint.iteration(now, number, counting)

    def _log(self, sample: Sample) -> None:
        """Write a line, unless the caller is so far ahead that fewer iterations have passed than a line is about."""
        if self._logged is not None:
            if done(self._logged, sample) < self._every:
                return
            logger.info("%s", line(self._logged, sample))
        self._logged = sample

    def close(self) -> None:
        """End the endpoint; may be called again."""
        if self._endpoint is not None:
            self._endpoint.close()


class PlainIterations:
    """Log lines about the iterations of a store, or an optimizer, that schedules nothing: only their time is known, as its caller's pushes,
    or steps, show it. Called by the thread that pushes.

    A caller that runs ahead of MXNet's engine is timed right only over many iterations.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._number = 0
        self._pushed: Set[Any] = set()  # keys, in this iteration
        self._logged: Optional[Tuple[float, int]] = None  # when the line before was written, at the beginning of which iteration

    def pushed(self, key: Any) -> None:
        """The caller pushes this key: if it has in this iteration already, the next one begins."""
        if self._number and key not in self._pushed:
            self._pushed.add(key)
            return
        self._number, self._pushed = self._number + 1, {key}
        now, before = time.monotonic(), self._logged
        if before is not None:
            if self._number - before[1] < self._every:
                return
            seconds = (now - before[0]) / (self._number - before[1])
            logger.info("iterations %d to %d: %.1f ms each, not scheduled", before[1], self._number, 1e3 * seconds)
        self._logged = (now, self._number)


class Endpoint:
    """Prometheus' text format at ``http://metrics_host:metrics_port + rank/metrics``."""

    def __init__(self, config: Config, rank: int) -> None:
        try:
            from prometheus_client import CollectorRegistry, make_wsgi_app
        except ImportError:
            install = "after \"pip install 'prometheus_client>=0.14'\""
            raise ConfigError(
                not_allowed(f"metrics_port={config.metrics_port}", install, " without the package prometheus_client")
            ) from None
        self._rank, self.policy = str(rank), config.policy
        self._samples: Tuple[Optional[Sample], Optional[Sample]] = (None, None)  # the last but one, the newest
        self._began = 0.0  # wall-clock time of the newest iteration (seconds since 1970)
        registry = CollectorRegistry()
        registry.register(self)
        host, port = config.metrics_host, (config.metrics_port or 0) + rank
        try:
            self._server = make_server(host, port, make_wsgi_app(registry), EndpointServer, QuietHandler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            why = f": rank {rank} cannot listen on {host}:{port}, its port ({reason})"
            free = "a port P for which P + rank is free for every rank"
            raise ConfigError(not_allowed(f"metrics_port={config.metrics_port}", free, why)) from None
        try:
            self._thread = start_thread("metrics", self._server.serve_forever, POLL_SECONDS)
        except KVStoreError:
            self._server.server_close()
            raise
        logger.info("metrics: http://%s:%d/metrics", host, port)

    def iteration(self, now: float, number: int, counting: Counting) -> None:
        """Take a sample, unless the last one is fresh."""
        self._began = time.time()
        newest = self._samples[1]
        if newest is None or now - newest.seconds >= SAMPLE_SECONDS:
            self._samples = (newest, Sample(now, number, counting.snapshot()))

    def collect(self) -> Iterator[Any]:
        """For prometheus_client: the metric families. Called in the threads of the endpoint's clients, perhaps in several at a time."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        (before, newest), labels, about = self._samples, ["rank", "policy"], (self._rank, self.policy)
        if newest is None:
            return

        def family(kind: Any, name: str, text: str, value: float) -> Any:
            made = kind("prophet_mx_" + name, text, labels=labels)
            made.add_metric(about, value)
            return made

        yield family(CounterMetricFamily, "iterations", "Iterations begun.", newest.iteration)
        for name, text in _COUNTERS.items():
            if name in newest.state:
                yield family(CounterMetricFamily, name, text, newest.state[name])
        yield family(GaugeMetricFamily, "last_iteration_timestamp_seconds", "When the newest iteration began.", self._began)
        rates = GaugeMetricFamily("prophet_mx_link_rate_bytes_per_second", "Measured rate of a connection.", labels=labels + ["server"])
        for server, link in enumerate(newest.state["links"]):
            rates.add_metric((*about, str(server)), link["rate"])
        yield rates
        if before is not None:
            found = between(before, newest)
            for name, text in _GAUGES.items():
                yield family(GaugeMetricFamily, name, text, found[name])

    def close(self) -> None:
        """Stop listening and join all threads. Requests under way are cut off."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()


_COUNTERS = {
    "units": "Units released.",
    "bytes": "Bytes released.",
    "blocks": "Gradient blocks: units that fit a predicted interval.",
    "block_bytes": "Bytes released with gradient blocks.",
    "wait_seconds": "Sum over units of the time from ready to released.",
    "inverted_bytes": "Bytes released ahead of more urgent ready ones.",
    "stalled_seconds": "Seconds for which the program has waited for gradients.",
}
_GAUGES = {
    "iteration_seconds": "Mean time of the newest iterations.",
    "first_wait_seconds": "Mean time from ready to answered of the most urgent unit in the newest iterations.",
    "first_ahead_bytes": "Mean bytes in front of the most urgent unit when it became ready in the newest iterations.",
    "utilisation": "Share of the link used in the newest iterations while there was something to send, 0 to 1.",
}


class Counted(Protocol):
    """A store, or an optimizer, whose traffic may be scheduled."""

    def counters(self) -> Dict[str, Any]:
        """As :meth:`Counting.snapshot` gives them; empty where nothing is scheduled."""


class ScalarLogger:
    """A callback that writes TensorBoard scalars, ``prophet_mx/iteration_seconds`` and the others of :func:`between`.

    Parameters
    ----------
    kv : the store, or a ScheduledOptimizer. If its traffic is not scheduled, only the time of an iteration is written.
    writer : anything with ``add_scalar(tag, value, step)``: the SummaryWriter of tensorboardX, of PyTorch, of mxboard.
    every : iterations between two points.

    Call it once per iteration, or hand it to MXNet, which does:

    >>> module.fit(data, kvstore=kv, batch_end_callback=ScalarLogger(kv, writer))           # doctest: +SKIP
    """

    def __init__(self, kv: Counted, writer: Any, every: int = 50) -> None:
        need_whole("every", every, 1, unit=" (iterations)")
        self._kv = kv
        self._writer = writer
        self._every = every
        self._calls = 0
        self._last: Optional[Sample] = None

    def __call__(self, parameter: Any = None) -> None:
        """One iteration has ended. ``parameter`` is what MXNet passes to callbacks; it is not used."""
        self._calls += 1
        if self._last is not None and self._calls - self._last.iteration < self._every:
            return
        sample = Sample(time.monotonic(), self._calls, self._kv.counters())
        if self._last is not None:
            if sample.state and self._last.state:
                values = between(self._last, sample)
            else:
                values = {"iteration_seconds": (sample.seconds - self._last.seconds) / (sample.iteration - self._last.iteration)}
            for name, value in values.items():
                self._writer.add_scalar("prophet_mx/" + name, value, self._calls)
        self._last = sample
