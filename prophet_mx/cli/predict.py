"""The command ``prophet-mx predict``: whether scheduling can help a job on a network, why, and what each policy would give."""

import argparse
import json
from typing import Any, Dict, List, Optional, Tuple

from ..errors import ConfigError, not_allowed
from ..simulation.cluster import PLAIN, Cluster
from ..simulation.collectives import STARTUP
from ..simulation.predict import ITERATIONS, MARGIN, WARMUP, WORST, Prediction, UsefulRates, predict_cluster, useful_rates
from ..simulation.verdict import described, facts, verdict, where
from . import all_reduce
from .arguments import cost_seconds
from .question import EXIT_CODES, EXPLAINED, HEADINGS, Answer, Question, add_question, as_dict, job_sentence, line, read, write_csv

HELP = "say whether scheduling can help a job on a network, and why"
DESCRIPTION = "Say whether scheduling would help a job on a network, and print a table of iteration times."
EPILOG = f"""\
example, a model with a built-in profile, on a network of 10 Gbit/s:
  prophet-mx predict --model vgg16 --compute 250ms --bandwidth 10Gbit --workers 8

example, a PyTorch job:
  prophet-mx predict --model bert --compute 250ms --bandwidth 10Gbit --workers 8 --all-reduce

example, a profile that a job saved with PROPHET_PROFILE=job.json, at two bandwidths:
  prophet-mx predict --profile job.json --bandwidth 10Gbit,25Gbit --workers 4

The words:
  rho    time to send an iteration's gradients / time to compute it; scheduling helps most near 1
  stall  the part of an iteration in which a worker waits for the network and computes nothing
  gain   how many times as fast an iteration is as with plain dist_sync. A gain below {MARGIN:.0%} counts as
         none: most predictions are wrong by less, and the worst ones by up to {WORST:.0%}
  fp16   how many times as fast with gradients in 16 bits (compress="fp16"), where that gains more
  server how many times its share the busiest server carries. MXNet keeps a small gradient whole, on one
         server. So one link can be full while rho is small, and then scheduling helps

{EXPLAINED}

{EXIT_CODES}"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_question(parser)
    parser.add_argument(
        "--no-range",
        action="store_true",
        help="skip the search for bandwidths at which scheduling pays, which takes a few seconds; there is none with --ports",
    )
    add = parser.add_argument_group("all-reduce").add_argument
    add(
        "--all-reduce",
        action="store_true",
        help="predict a PyTorch job of --workers ranks with DistributedDataParallel and with ScheduledOptimizer",
    )
    add(
        "--startup",
        type=cost_seconds,
        metavar="TIME",
        help=f"time of a tiny all-reduce while others are under way (default: {1e6 * STARTUP:.0f}us, gloo's over TCP)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command; its exit code."""
    if arguments.all_reduce:
        return all_reduce.run(arguments)
    if arguments.startup is not None:
        raise ConfigError(not_allowed("--startup", "--message-time, --server-time", " without --all-reduce"))
    question = read(arguments)
    if not arguments.json:
        print(job_sentence(question.profile, question.compute))
    predictions, rows = [], []
    for cluster in question.clusters:
        prediction = predict_cluster(question.profile, cluster, question.policies, **question.effort)
        predictions.append(prediction)
        rows += [Answer.of(prediction.results[policy], prediction.results[PLAIN]) for policy in question.policies]
        if not arguments.json:
            print("\n" + "\n  ".join([described(cluster), verdict(prediction).sentence, *facts(prediction)]), flush=True)
    if not arguments.json:
        print("\n" + "\n".join(map(line, [HEADINGS, *(row.cells() for row in rows)])), flush=True)
    values = [row.values() for row in rows]
    ranges = [] if arguments.no_range or arguments.ports else _ranges(question)
    if arguments.json:
        answer = as_dict(question.profile, question.compute, values)
        answer["predictions"] = [_as_dict(prediction) for prediction in predictions]
        answer["useful_bandwidths"] = [_machines(cluster, useful and useful._asdict()) for cluster, useful in ranges]
        print(json.dumps(answer, indent=1))
    elif ranges:
        print("\n" + "\n".join(where(useful, cluster) for cluster, useful in ranges))
    return write_csv("predict", arguments.csv, values)


def _ranges(question: Question) -> List[Tuple[Cluster, Optional[UsefulRates]]]:
    """Where scheduling pays, for each number of machines."""
    sizes = {(cluster.workers, cluster.servers): cluster for cluster in question.clusters}
    effort: Dict[str, Any] = {**question.effort, "iterations": ITERATIONS, "warmup": WARMUP}
    return [(cluster, useful_rates(question.profile, cluster, **effort)) for cluster in sizes.values()]


def _machines(cluster: Cluster, useful: Optional[Dict[str, Any]]) -> Dict[str, Any]:
    return {"workers": cluster.workers, "servers": cluster.servers, "range": useful}


def _as_dict(prediction: Prediction) -> Dict[str, Any]:
    """For JSON: seconds, bytes/s."""
    cluster = prediction.cluster
    return {
        "bandwidth": cluster.bandwidth,
        "workers": cluster.workers,
        "servers": cluster.servers,
        "rho": prediction.rho,
        "compute_seconds": prediction.compute,
        "communication_seconds": prediction.communication,
        "bound_seconds": prediction.bound,
        "halved_seconds": None if prediction.halved is None else prediction.halved.seconds,
        "stall_seconds": {policy: prediction.stall(policy) for policy in prediction.results},
        "verdict": verdict(prediction)._asdict(),
    }
