"""The best unit and credit of a method, as an expert would look for them: with a short job for each."""

import argparse
import math
import statistics
import sys
from typing import Callable, Dict, Sequence, Tuple

from ..testbed import TestbedError
from .methods import Method, parse
from .rows import MeasuredJob

FIRST, NUMBERS = 4, (2, 8)  # units that are unanswered: first each unit with so many, then the best unit with so many
SHORT = {"warmup": 5, "iterations": 6}  # of a search's jobs


def short(options: argparse.Namespace) -> argparse.Namespace:
    """The options of a short job."""
    return argparse.Namespace(**{**vars(options), **SHORT})


def tuned(method: str, units: Sequence[int], run: Callable[[Method], MeasuredJob]) -> str:
    """The method with the settings with which a job that ``run`` runs takes the least time. A job that fails is none of them."""

    def try_out(name: str) -> float:
        try:
            time = statistics.median(run(parse(name)).times(SHORT["warmup"])) * 1e3
        except TestbedError as error:
            print(f"error: search, {name}: {error}", file=sys.stderr, flush=True)
            return math.inf
        print(f"  search, {name}: {time:.1f} ms", flush=True)
        return time

    return search(method, units, try_out)


def search(method: str, units: Sequence[int], try_out: Callable[[str], float]) -> str:
    """The method with the unit and the unanswered bytes of which a job takes the least time."""
    times: Dict[str, float] = {}

    def best_of(pairs: Sequence[Tuple[int, int]]) -> Tuple[int, int]:
        names = {f"{method}:PROPHET_UNIT={unit}:PROPHET_LEAD={unit * number}": (unit, number) for unit, number in pairs}
        times.update({name: try_out(name) for name in names if name not in times})
        return names[min(names, key=lambda name: times[name])]

    unit, _ = best_of([(unit, FIRST) for unit in units])
    best_of([(unit, number) for number in NUMBERS])
    return min(times, key=lambda name: times[name])
