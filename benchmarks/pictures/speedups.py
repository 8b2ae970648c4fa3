"""The numbers of the pictures, simulated and as published. Needs no matplotlib."""

from pathlib import Path
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence

from prophet_mx.profiling.gradient_profile import GradientProfile
from prophet_mx.profiling.model_profiles import model_profile
from prophet_mx.simulation.predict import load_costs, predicted_seconds

from ..comparison.cells import Cell, model
from ..comparison.results import RESULTS, load
from ..comparison.summaries import summarise
from ..comparison.tables import column
from ..publish import asked, rows_of
from ..questions import QUESTIONS

PLAIN = "pushpull"  # the method that is plain dist_sync
BOUND = "limit"
CELL = "resnet50_v1,rho=1,scale=1,rate=4Gbit"  # of the picture of one iteration
LIKE_CELL = "resnet50_v1,"  # begins the cell of emulated GPUs that is like it
GOODPUT_SHARE = 0.945  # of a link's rate that TCP delivers, where nothing was measured
# Of the picture of rates: a job like many, with what a message costs on a machine of its own.
MODELS = ("mobilenetv2_1.0", "densenet121", "inceptionv3", "resnet50_v1", "resnet152_v1", "transformer_base", "bert_base", "vgg16")
RATES_GBIT = (1, 2, 5, 10, 25, 50, 100)
COMPUTE, MACHINES = 0.25, 8  # seconds of an iteration; workers, and as many servers


class Costs(NamedTuple):
    """What messages cost in the simulator, by field of Cluster, and where that comes from, in words."""

    values: Mapping[str, float]
    words: str


class Bars(NamedTuple):
    """A model's times (ms per iteration), by method as it is called in pages, and BOUND."""

    model: str
    times: Dict[str, float]


def conditions(cell: Cell, profile: GradientProfile) -> str:
    """The model, as it is scaled, and the machines, in words."""
    machines = ", ".join(f"{count} {what}{'s' * (count > 1)}" for count, what in ((cell.workers, "worker"), (cell.servers, "server")))
    megabytes, compute = profile.total_bytes / 1e6, profile.compute_seconds * 1e3
    return f"{model(cell.profile)}, {megabytes:.0f} MB of gradients, {compute:.0f} ms of computing, {machines}"


def message_costs(path: Path) -> Costs:
    """The costs that were fitted and published, or the simulator's own. Raises ConfigError."""
    if not path.exists():
        return Costs({}, "with messages that cost nothing, as no fitted costs are published")
    costs = load_costs(str(path))
    if not any(costs.values()):
        return Costs(costs, "with messages that cost nothing, which fits measured jobs best")
    return Costs(costs, "with message costs fitted to measured jobs")


def speed_up(name: str, gbit: float, costs: Mapping[str, float]) -> float:
    """How many times as fast as plain ``dist_sync`` prophet is, simulated, with a model that ships at a rate of the links."""
    profile = model_profile(name).scaled(compute=COMPUTE)
    rate = gbit * 1e9 / 8 * GOODPUT_SHARE
    plain, ours = (predicted_seconds(profile, rate, MACHINES, MACHINES, policy, costs=costs) for policy in ("plain", "prophet"))
    return plain / ours


def bars(results: Path = RESULTS) -> List[Bars]:
    """The published times of each model. Raises BelowBoundError."""
    question, result = QUESTIONS["models"], load("models", results)
    if result is None:
        return []
    about = asked(question, result.about)
    found = []
    for cell in summarise(rows_of(question, result), about["methods"]):
        times = {column(name, about): summary.time.median for name, summary in cell.methods.items() if summary.jobs}
        bound = next((job.bound_ms for summary in cell.methods.values() for job in summary.jobs[:1]), None)
        found.append(Bars(model(cell.cell), {**times, **({} if bound is None else {BOUND: bound})}))
    return found


def measured_seconds(methods: Sequence[str], results: Path = RESULTS) -> Optional[List[float]]:
    """Published seconds per iteration of a script on emulated GPUs that is like CELL; None if a method is missing."""
    result = load("devices", results)
    rows = [row for row in result.rows if row.cell.startswith(LIKE_CELL) and "script=gluon" in row.cell] if result else []
    for cell in summarise(rows, ()):
        found = [cell.methods[name] for name in methods if name in cell.methods and cell.methods[name].jobs]
        if len(found) == len(methods):
            return [summary.time.median / 1e3 for summary in found]
    return None


def measured_words(methods: Sequence[str], results: Path = RESULTS) -> str:
    """The same in a sentence; empty where nothing is published."""
    found = measured_seconds(methods, results)
    times = " and ".join(f"{seconds * 1e3:.0f}" for seconds in found or ())
    return f"On emulated GPUs, all on two cores: {times} ms." if found else ""
