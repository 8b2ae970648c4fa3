"""The numbers of the pictures: how much faster a method is than plain ``dist_sync``, simulated and as published. Pure but for reading
published results; needs no matplotlib."""

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from prophet_mx.planning.bound import communication_seconds
from prophet_mx.profiling.gradient_profile import GradientProfile
from prophet_mx.simulation.predict import load_costs

from ..comparison.cells import Cell, model
from ..comparison.results import RESULTS, Files
from ..questions import QUESTIONS
from ..validate_simulator import Measured, predict, read

PLAIN = "pushpull"  # the method that is plain dist_sync
BOUND = "bound"
JOB = "resnet50_v1,compute=0.5,scale=0.3"  # of the picture of bandwidth
CELL = "resnet50_v1,rho=1,compute=0.15"  # of the pictures of one iteration
GOODPUT_SHARE = 0.945  # of a link's rate that TCP delivers, where nothing was measured


class Costs(NamedTuple):
    """What messages cost in the simulator, by field of Cluster, and where that comes from, in words."""

    values: Mapping[str, float]
    words: str


class Point(NamedTuple):
    """A rate of the links (bytes/s), and how many times as fast as plain ``dist_sync`` a method is there."""

    rate: float
    speedup: float


def conditions(cell: Cell, profile: GradientProfile) -> str:
    """The model, as it is scaled, and the machines, in words."""
    machines = ", ".join(f"{count} {what}{'s' * (count > 1)}" for count, what in ((cell.workers, "worker"), (cell.servers, "server")))
    megabytes, compute = profile.total_bytes / 1e6, profile.compute_seconds * 1e3
    return f"{model(cell.profile)}, gradients scaled to {megabytes:.0f} MB, {compute:.0f} ms of computing, {machines}"


def message_costs(path: Path) -> Costs:
    """The costs that were fitted and published, or the simulator's own. Raises ConfigError."""
    if not path.exists():
        return Costs({}, "with messages that cost nothing, as no fitted costs are published")
    costs = load_costs(str(path))
    if not any(costs.values()):
        return Costs(costs, "with messages that cost nothing, which fits measured jobs best")
    return Costs(costs, "with message costs fitted to measured jobs")


def simulated(job: Cell, rates: Sequence[float], methods: Sequence[str], costs: Mapping[str, float]) -> Dict[str, List[Point]]:
    """The points of each method, and of BOUND: what the lower bound leaves to gain."""
    points: Dict[str, List[Point]] = {name: [] for name in (*methods, BOUND)}
    for rate in rates:
        cell = replace(job, rate=rate)
        goodput = rate * GOODPUT_SHARE
        seconds = {method: predict(cell, method, goodput, dict(costs)) for method in {PLAIN, *methods}}
        seconds[BOUND] = cell.load(goodput).bound
        for name, own in points.items():
            own.append(Point(rate, seconds[PLAIN] / seconds[name]))
    return points


def measured(job: Cell, results: Path = RESULTS) -> Dict[str, List[Point]]:
    """The points of all published jobs like ``job``, whatever their rate. Only jobs of one run are compared with each other."""
    points: Dict[str, List[Point]] = {}
    for rows in _published(results):
        plain = {row.cell: row.seconds for row in rows if row.method == PLAIN}
        for row in rows:
            if row.method != PLAIN and row.cell in plain and replace(row.cell, rate=job.rate) == job:
                points.setdefault(row.method, []).append(Point(row.cell.rate, plain[row.cell] / row.seconds))
    return {method: sorted(own) for method, own in points.items()}


def measured_seconds(cell: Cell, methods: Sequence[str], results: Path = RESULTS) -> Optional[List[float]]:
    """Published seconds per iteration of each method in a cell, from the first run that has them all; None without one."""
    for rows in _published(results):
        mine = {method: [row.seconds for row in rows if (row.cell, row.method) == (cell, method)] for method in methods}
        if all(mine.values()):
            return [statistics.median(mine[method]) for method in methods]
    return None


def measured_words(cell: Cell, methods: Sequence[str], results: Path = RESULTS) -> str:
    """The same in a sentence; empty where nothing is published."""
    found = measured_seconds(cell, methods, results)
    return f"Measured on real jobs: {' and '.join(f'{seconds * 1e3:.0f}' for seconds in found)} ms." if found else ""


def _published(results: Path) -> Iterator[List[Measured]]:
    for question in QUESTIONS.values():
        file = Files.published(question.name, results).data
        if question.module == "run" and file.exists():
            yield read([file])


def rate_of_rho(job: Cell, rho: float) -> float:
    """The rate of the links (bytes/s) at which a job of fixed size and compute time has this rho."""
    load = job.load(job.rate * GOODPUT_SHARE)
    return job.rate * communication_seconds(load.profile, load.rate) / load.profile.compute_seconds / rho


def useful_range(points: Sequence[Point], least: float) -> Optional[Tuple[float, float]]:
    """The rates (bytes/s) between which a method is ``least`` times as fast or more, with straight lines between its points; None if it
    nowhere is. Where it is so at an end of the points, that end is the range's."""
    found = [point.rate for point in points if point.speedup >= least]
    for (rate, speedup), (beyond, other) in zip(points, points[1:]):
        if (speedup >= least) != (other >= least):
            found.append(rate + (beyond - rate) * (least - speedup) / (other - speedup))
    return (min(found), max(found)) if found else None
