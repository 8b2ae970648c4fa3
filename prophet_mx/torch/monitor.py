"""What an operator sees of a rank: statistics, log lines, the endpoint, the timeline. ``monitoring/`` makes them."""

import logging
from typing import Any, Dict, List, Optional, Sequence, TypedDict

from ..config import Config
from ..errors import ConfigError
from ..monitoring.metrics import Metrics, first_unit, utilisation
from ..monitoring.rounds import RoundCounters, RoundRecorder
from ..monitoring.timeline import Timeline
from ..planning.rounds import RoundPlan
from ..policies import OFF
from .waiting import Waiting

logger = logging.getLogger("prophet_mx")

ANSWERS = "norms, or which parameters were used"  # label of the units that tell all ranks


class _Tried(TypedDict, total=False):
    scheduled_seconds: float
    ddp_seconds: float


class Stats(_Tried):
    """The result of :meth:`ScheduledOptimizer.stats`. If DistributedDataParallel does everything itself, the policy is ``off``, numbers are
    0 and lists are empty.

    Attributes
    ----------
    policy : ``prophet``; ``off`` also where the job goes on as plain DistributedDataParallel, which was faster.
    compress : as what gradients travel: ``bf16``, ``fp16``, or ``off`` for what they are.
    iterations : calls of ``step()``.
    scheduled_seconds, ddp_seconds : of an iteration, as the job has tried both; missing if it has not.
    units, bytes : collectives that are done, and their payload.
    wait_seconds : sum over units, from ready here until started.
    first_wait : mean seconds from ready here until summed up of the most urgent unit.
    first_ahead : mean bytes that were started and not yet summed up when it became ready, and so were ahead of it.
    stalled_seconds : time that the program has spent waiting for gradients.
    utilisation : share of ``rates`` that was used while a unit was ready whose turn it was, 0 to 1.
    rates : bytes/s of payload that the plan assumes, in a list; 0 until measured.
    startup_seconds : the least time from one collective to the next; 0 until measured.
    unit_bytes : payload of the largest collective of an iteration.
    planned_units, plans : collectives of an iteration, and how many plans were made of profiles so far.
    steps : lists of names of the parameters whose gradients become ready together; empty until learned.
    step_times : seconds after the iteration's first ready gradient, for each step.
    unscheduled : what the job does that keeps gradients from being scheduled as they could be, in sentences; empty if nothing was seen.
    failure : why gradients can no longer be reduced, in words; '' if they can.
    """

    policy: str
    compress: str
    iterations: int
    units: int
    bytes: int
    wait_seconds: float
    first_wait: float
    first_ahead: float
    stalled_seconds: float
    utilisation: float
    rates: List[float]
    startup_seconds: float
    unit_bytes: int
    planned_units: int
    plans: int
    steps: List[List[str]]
    step_times: List[float]
    unscheduled: List[str]
    failure: str


def nothing() -> Stats:
    """Where DistributedDataParallel does everything."""
    return {
        "policy": OFF,
        "compress": OFF,
        "iterations": 0,
        "units": 0,
        "bytes": 0,
        "wait_seconds": 0.0,
        "first_wait": 0.0,
        "first_ahead": 0.0,
        "stalled_seconds": 0.0,
        "utilisation": 0.0,
        "rates": [],
        "startup_seconds": 0.0,
        "unit_bytes": 0,
        "planned_units": 0,
        "plans": 0,
        "steps": [],
        "step_times": [],
        "unscheduled": [],
        "failure": "",
    }


class Monitor:
    """Shows one rank. Called in the thread that calls ``step()``, but for what RoundCounters says.

    Parameters
    ----------
    config : what is asked for.
    names : of the parameters.
    waiting : counts the seconds that the program waits.
    rank, ranks : the number of this one in the job, and how many train together.

    Raises
    ------
    ConfigError
        the endpoint cannot listen, or a package that it needs is missing; or the file of the timeline cannot be made.
    """

    def __init__(self, config: Config, names: Sequence[str], waiting: Waiting, rank: int, ranks: int) -> None:
        self.traffic = RoundCounters([*names, ANSWERS])
        self._config, self._waiting, self._rank, self._ranks = config, waiting, rank, ranks
        self._timeline: Optional[Timeline] = None
        self._metrics = Metrics(config, rank)
        if config.timeline is not None:
            try:
                self._start(config)
            except BaseException:
                self._metrics.close()
                raise

    def iteration_ends(self, number: int) -> None:
        """Iteration ``number`` is over, counted from 1."""
        self._metrics.iteration(number, self)

    def snapshot(self) -> Dict[str, Any]:
        """As :meth:`prophet_mx.monitoring.metrics.Counting.snapshot`."""
        return {**self.traffic.snapshot(), "stalled_seconds": self._waiting.seconds}

    def stats(self, iterations: int, plan: RoundPlan, plans: int, unscheduled: Sequence[str]) -> Stats:
        """See :class:`Stats`."""
        profile = plan.profile
        state = self.snapshot()
        first = first_unit(state)
        return {
            "policy": self._config.policy,
            "compress": self._config.compress or OFF,
            "iterations": iterations,
            "units": state["units"],
            "bytes": state["bytes"],
            "wait_seconds": state["wait_seconds"],
            "first_wait": first["first_wait"],
            "first_ahead": first["first_ahead"],
            "stalled_seconds": state["stalled_seconds"],
            "utilisation": utilisation(state["links"]),
            "rates": [link["rate"] for link in state["links"]],
            "startup_seconds": plan.cost.startup if plan.cost else 0.0,
            "unit_bytes": self.traffic.largest,
            "planned_units": self.traffic.planned,
            "plans": plans,
            "steps": profile.step_names() if profile else [],
            "step_times": list(profile.step_times()) if profile else [],
            "unscheduled": list(unscheduled),
            "failure": "" if self._waiting.failure is None else str(self._waiting.failure),
        }

    def start_timeline(self, config: Config) -> str:
        """Write a trace from now on, as the settings say; the file's path."""
        if self._timeline is not None and self._timeline.writing:
            raise ConfigError(f"a timeline is being written to {self._timeline.path}; end it with timeline_stop()")
        self.stop_timeline()
        return self._start(config)

    def _start(self, config: Config) -> str:
        self._timeline = Timeline(
            self.traffic,
            lambda links, process: RoundRecorder(process),
            str(config.timeline),
            config.timeline_limit,
            rank=self._rank,
            workers=self._ranks,
            links=["all-reduce"],
            gradients=self.traffic.gradients,
            names=self.traffic.labels,
            about={"policy": self._config.policy},
        )
        return self._timeline.path

    def stop_timeline(self) -> Optional[str]:
        """The path of the trace that ends; None if none was being written."""
        timeline, self._timeline = self._timeline, None
        if timeline is None:
            return None
        timeline.stop()
        return timeline.path

    def close(self) -> None:
        """End the threads. May be called again."""
        self.stop_timeline()
        self._metrics.close()
