"""The numbers of the pictures, simulated and as published. Needs no matplotlib."""

from pathlib import Path
from typing import Dict, List, Mapping, NamedTuple

from prophet_mx.profiling.model_profiles import model_profile
from prophet_mx.simulation.predict import predicted_seconds

from ..comparison.cells import Cell, model
from ..comparison.results import RESULTS, load
from ..comparison.summaries import summarise
from ..comparison.tables import column
from ..publish import asked, rows_of
from ..questions import QUESTIONS

NAMES = {"pushpull": "plain dist_sync", "prophet": "prophet_mx"}  # of the methods whose iterations are shown
BOUND = "limit"
GOODPUT_SHARE = 0.945  # of a link's rate that TCP delivers, where nothing was measured
# Of the picture of rates: a job like many, with what a message costs on a machine of its own.
MODELS = ("mobilenetv2_1.0", "densenet121", "inceptionv3", "resnet50_v1", "resnet152_v1", "transformer_base", "bert_base", "vgg16")
RATES_GBIT = (1, 2, 5, 10, 25, 50, 100)
COMPUTE, MACHINES = 0.25, 8  # seconds of an iteration; workers, and as many servers


class Bars(NamedTuple):
    """A model's times (ms per iteration), by method as it is called in pages, and BOUND."""

    model: str
    times: Dict[str, float]


def conditions(cell: Cell, megabytes: float, compute: float) -> str:
    """The model, its gradients, its computing (ms) and the machines, in words."""
    machines = ", ".join(f"{count} {what}{'s' * (count > 1)}" for count, what in ((cell.workers, "worker"), (cell.servers, "server")))
    return f"{model(cell.profile)}, {megabytes:.0f} MB of gradients, {compute:.0f} ms of computing, {machines}"


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
