"""``predict --all-reduce``: what ScheduledOptimizer would give a PyTorch job, in words and as a table."""

import argparse
import json
from typing import Any, Dict, List, Tuple

from ..errors import ConfigError, not_allowed
from ..quantities import format_rate
from ..simulation.collectives import DDP, SCHEDULED, STARTUP, RingPrediction, predict_ring
from ..simulation.predict import MARGIN
from ..simulation.simulator import POLICIES
from ..simulation.verdict import milliseconds
from .question import COSTS, as_dict, job_of, job_sentence, line, write_csv

HEADINGS = ("method", "bandwidth", "ranks", "ms", "bound", "ratio", "speedup")
WIDTHS = (20, 12, 7, 10, 10, 7, 7)


def run(arguments: argparse.Namespace) -> int:
    """Print the answer; the exit code of the command."""
    _check(arguments)
    profile, compute = job_of(arguments)
    startup = STARTUP if arguments.startup is None else arguments.startup
    found = [
        (bandwidth, ranks, predict_ring(profile, bandwidth, ranks, startup))
        for ranks in arguments.workers
        for bandwidth in arguments.bandwidth
    ]
    rows = [row for bandwidth, ranks, prediction in found for row in _rows(bandwidth, ranks, prediction)]
    if arguments.json:
        answer = as_dict(profile, compute, rows)
        answer["predictions"] = [_as_dict(*each) for each in found]
        print(json.dumps(answer, indent=1))
    else:
        print(job_sentence(profile, compute))
        for bandwidth, ranks, prediction in found:
            print(f"\n{ranks} ranks, all-reduce, links of {format_rate(bandwidth)}\n  " + "\n  ".join(words(prediction)))
        print("\n" + "\n".join(line(cells, WIDTHS) for cells in [HEADINGS, *map(_cells, rows)]))
    return write_csv("predict", arguments.csv, rows)


def _check(arguments: argparse.Namespace) -> None:
    """ConfigError if an option is given that has no meaning here."""
    given = [option for option, field, *_ in COSTS if getattr(arguments, field) is not None]
    given += ["--costs"] if arguments.costs else []
    given += ["--servers"] if arguments.servers else []
    given += ["--ports"] if arguments.ports else []
    given += ["--hosts"] if arguments.hosts else []
    given += ["--copy-whole"] if arguments.copy_whole else []
    given += ["--policy"] if arguments.policy != list(POLICIES) else []
    given += ["--seed"] if arguments.seed is not None else []
    given += ["--iterations"] if arguments.iterations is not None else []
    few = [ranks for ranks in arguments.workers if ranks < 2]
    if few:
        raise ConfigError(not_allowed(f"--workers {few[0]}", "a whole number of ranks from 2", " with --all-reduce"))
    if given:
        raise ConfigError(not_allowed(given[0], "the options of the job, --bandwidth, --workers, --startup", " with --all-reduce"))


def verdict(prediction: RingPrediction) -> Dict[str, Any]:
    """Whether scheduling helps on these ranks, in words, and by how much: ``gain`` is the time with DistributedDataParallel / that with
    ``method`` - 1."""
    ddp, own = prediction.seconds[DDP], prediction.seconds[SCHEDULED]
    shown = f"with ScheduledOptimizer an iteration takes {milliseconds(own)} instead of {milliseconds(ddp)}"
    helps = ddp >= (1 + MARGIN) * own
    if helps:
        sentence = f"Scheduling helps: {shown}, {ddp / own:.2f} times as fast as with DistributedDataParallel."
    else:
        sentence = f"Scheduling gains next to nothing: {shown}."
    return {"helps": helps, "method": SCHEDULED, "gain": ddp / own - 1, "sentence": sentence}


def words(prediction: RingPrediction) -> List[str]:
    """Whether scheduling helps, and what that rests on, a line each."""
    own, best = prediction.seconds[SCHEDULED], prediction.best_ddp
    tuned = prediction.seconds[best]
    sends, computes = milliseconds(prediction.communication), milliseconds(prediction.compute)
    lines = [
        verdict(prediction)["sentence"],
        f"rho    {prediction.rho:.3g}: an iteration sends for {sends} and computes for {computes}",
        f"bound  {milliseconds(prediction.bound)}: the least with any order of sending",
    ]
    if best != DDP:
        size = best.split()[1]
        lines.append(
            f"tuned  {milliseconds(tuned)} with DistributedDataParallel and bucket_cap_mb={size}, {tuned / own:.2f} times the time of "
            "ScheduledOptimizer"
        )
    return lines


def _as_dict(bandwidth: float, ranks: int, prediction: RingPrediction) -> Dict[str, Any]:
    """For JSON: seconds, bytes/s."""
    return {
        "bandwidth": bandwidth,
        "ranks": ranks,
        "rho": prediction.rho,
        "compute_seconds": prediction.compute,
        "communication_seconds": prediction.communication,
        "bound_seconds": prediction.bound,
        "verdict": verdict(prediction),
    }


def _rows(bandwidth: float, ranks: int, prediction: RingPrediction) -> List[Dict[str, Any]]:
    return [
        {
            "method": method,
            "bandwidth": bandwidth,
            "ranks": ranks,
            "seconds": seconds,
            "bound": prediction.bound,
            "ratio": seconds / prediction.bound,
            "speedup": prediction.seconds[DDP] / seconds,
        }
        for method, seconds in prediction.seconds.items()
    ]


def _cells(row: Dict[str, Any]) -> Tuple[str, ...]:
    times = (f"{1e3 * row['seconds']:.1f}", f"{1e3 * row['bound']:.1f}", f"{row['ratio']:.3f}", f"{row['speedup']:.2f}")
    return (row["method"], format_rate(row["bandwidth"]), str(row["ranks"]), *times)
