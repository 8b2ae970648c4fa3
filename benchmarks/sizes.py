"""Compares the automatic sizes with the best of a sweep of sizes, in the simulator, from 2 to 1,000 workers.

    python -m benchmarks.sizes
    python -m benchmarks.sizes --cells workers=2,servers=1 --cells model=vgg16,rate=10Gbit,message=20us

A cell is a model on a cluster, its sizes scaled to rho 1; ``message`` is the time that a worker and a server take for each message. One
size is swept at a time: the unit around the chosen one, then the drain window, then the lead limit, each with the best of those before it.
The *regret* is the time with what is chosen over the best time that was found, minus 1. All cells take about an hour; ``--cells`` takes
those that have all the values of one of the given lists.

Prints the rows as they come. Results are written as by benchmarks.run. Exit code 1 if a regret is
over 3%, 2 if nothing can be run.
"""

import argparse
import itertools
import math
import statistics
import sys
from collections import Counter
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from prophet_mx.errors import not_allowed
from prophet_mx.planning.bound import scaled_to_rho, worker_rate
from prophet_mx.profiling.gradient_profile import GradientProfile
from prophet_mx.quantities import format_rate, parse_rate, parse_time
from prophet_mx.simulation.cluster import Unit, connection_rate, in_total_order, make_units, message_time
from prophet_mx.simulation.simulator import Cluster, Result, simulate

from .comparison.cells import PROFILES
from .comparison.metadata import describe
from .comparison.results import add_output_options, write_everywhere

LIMIT = 0.03
RTT, MESSAGE_BYTES = 1e-4, 100  # of an idle network (seconds), of a message besides its payload
ITERATIONS, WARMUP = 4, 3
UNITS = (1 / 4, 1 / 2, 1 / math.sqrt(2), math.sqrt(2), 2, 4)  # times the chosen one
WINDOWS = (1, 2, 4)  # units, and what a round trip carries
LEADS = (2, 3, 6)

MODELS = ("resnet50_v1", "vgg16")
MACHINES = ((2, 1), (2, 2), (8, 2), (8, 8), (32, 8), (32, 32), (128, 32), (128, 128), (1000, 250), (1000, 1000))  # workers, servers
RATES = (125e6, 1.25e9, 1.25e10)
MESSAGES = (20e-6, 50e-6, 200e-6)
MANY = 1000  # servers, with so many only the longest message: with others the best units are too many to simulate
MOST_UNITS = 5000  # that are simulated
LONG = ((2, 1, 125e6, 50e-6), (8, 2, 1.25e9, 50e-6), (128, 32, 1.25e10, 200e-6))  # of these also with 1 s of compute


class SimulatedCell(NamedTuple):
    """One row's worth of conditions: seconds of compute, bytes/s of every link, seconds that a message takes a process."""

    model: str
    compute: float
    workers: int
    servers: int
    rate: float
    message: float

    @property
    def cluster(self) -> Cluster:
        return Cluster(
            self.rate,
            self.workers,
            self.servers,
            rtt=RTT,
            message_bytes=MESSAGE_BYTES,
            message_seconds=self.message,
            server_message_seconds=self.message,
        )

    def load(self) -> GradientProfile:
        """The model's profile at rho 1."""
        profile = GradientProfile.load(str(PROFILES / f"{self.model}.json")).scaled(compute=self.compute)
        return scaled_to_rho(profile, worker_rate(self.rate, self.workers, self.servers), 1)


class Sizes(NamedTuple):
    """Bytes; 0 for the automatic size."""

    unit: int = 0
    window: int = 0
    lead: int = 0


VALUES: Dict[str, Callable[[str], Any]] = {
    "model": str,
    "compute": parse_time,
    "workers": int,
    "servers": int,
    "rate": parse_rate,
    "message": parse_time,
}


def all_cells() -> List[SimulatedCell]:
    """Those that are run unless some are selected."""
    short = [
        SimulatedCell(model, 0.15, workers, servers, rate, message)
        for (workers, servers), rate, message in itertools.product(MACHINES, RATES, MESSAGES)
        if servers < MANY or message == max(MESSAGES)
        for model in MODELS
    ]
    return short + [SimulatedCell(model, 1.0, *conditions) for conditions in LONG for model in MODELS]


def selected(cells: Sequence[SimulatedCell], texts: Sequence[str]) -> List[SimulatedCell]:
    """The cells that have all the values of one of the texts, such as ``workers=2,rate=10Gbit``; all of them without texts. ValueError if a
    text says something else, or no cell has its values."""
    if not texts:
        return list(cells)
    found = set()
    for text in texts:
        wanted = {}
        for setting in text.split(","):
            name, _, value = setting.partition("=")
            if name not in VALUES:
                raise ValueError(not_allowed(repr(setting), f"NAME=VALUE with one of {', '.join(VALUES)}"))
            wanted[name] = VALUES[name](value)
        fitting = {cell for cell in cells if all(same(getattr(cell, name), value) for name, value in wanted.items())}
        if not fitting:
            raise ValueError(f"there is no cell with {text}")
        found |= fitting
    return [cell for cell in cells if cell in found]


def same(one: Any, other: Any) -> bool:
    return one == other if isinstance(one, str) else math.isclose(one, other)


def unit_of(units: Sequence[Unit]) -> int:
    """Bytes of the largest slice, or of the largest gradient if none was cut."""
    parts = Counter(unit.gradient for unit in units)
    return max(unit.bytes for unit in units if parts[unit.gradient] > 1 or len(parts) == len(units))


def sweep(time: Callable[[Sizes], float], unit: int, flight: int, least: Callable[[int], float]) -> Tuple[Sizes, float]:
    """The best sizes that are found, and their time.

    ``time`` simulates sizes. ``unit`` is the chosen one, ``flight`` what a round trip carries (bytes). ``least`` is the time that messages
    of a unit take in any case: where that is longer than the best so far, nothing is simulated.
    """
    best = (time(Sizes()), Sizes())

    def better(options: Iterable[Sizes]) -> Tuple[float, Sizes]:
        return min([best, *((time(option), option) for option in options if least(option.unit or unit) < best[0])])

    cut = unit
    while True:  # further on where the smallest or the largest is the best
        tried = [max(4, int(factor * cut)) for factor in UNITS]
        best = better([Sizes(unit=size) for size in tried])
        center, cut = cut, best[1].unit or unit
        if cut == center or cut not in (tried[0], tried[-1]):
            break
    sizes = best[1]
    best = better([sizes._replace(window=int(number * cut + flight)) for number in WINDOWS])
    sizes = best[1]
    best = better([sizes._replace(lead=int(number * cut + flight)) for number in LEADS])
    return best[1], best[0]


class Swept(NamedTuple):
    """What a cell gives: units in bytes, times in seconds."""

    cell: SimulatedCell
    bound: float
    unit: int
    units: int
    chosen: float
    sizes: Sizes
    best: float

    @property
    def regret(self) -> float:
        return self.chosen / self.best - 1

    def __str__(self) -> str:
        cell = self.cell
        sizes = [f"{size / 1000:.0f} KB" if size else "as chosen" for size in self.sizes]
        cells = [
            cell.model,
            f"{cell.compute:g} s",
            f"{cell.workers}",
            f"{cell.servers}",
            format_rate(cell.rate),
            f"{cell.message * 1e6:.0f} us",
            f"{self.bound * 1e3:.0f}",
            f"{self.unit / 1000:.0f} KB",
            f"{self.units}",
            f"{self.chosen * 1e3:.0f} ({self.chosen / self.bound:.3f})",
            *sizes,
            f"{self.best * 1e3:.0f} ({self.best / self.bound:.3f})",
            f"{self.regret:.1%}" + (" **over 3%**" if self.regret > LIMIT else ""),
        ]
        return "| " + " | ".join(cells) + " |"


HEAD = (
    "| model | compute | workers | servers | link | a message | bound, ms | unit | units | chosen, ms (/ bound) "
    "| best unit | window | lead limit | best, ms (/ bound) | regret |\n|---|" + "---:|" * 14
)


def run(cell: SimulatedCell) -> Swept:
    """Sweep a cell's sizes."""
    profile, cluster = cell.load(), cell.cluster
    rate = connection_rate(cluster)

    def simulated(sizes: Sizes) -> Result:
        units = None
        if sizes.unit:
            units = in_total_order(make_units(profile, cell.servers, sizes.unit), profile, rate * cell.servers)
        return simulate(profile, cluster, "prophet", units, iterations=ITERATIONS, warmup=WARMUP, window=sizes.window, lead=sizes.lead)

    chosen = simulated(Sizes())
    unit = unit_of(chosen.units)

    def least(unit: int) -> float:
        units = profile.total_bytes / unit
        return message_time(cluster) * units if units <= MOST_UNITS else math.inf

    sizes, best = sweep(lambda sizes: simulated(sizes).seconds if any(sizes) else chosen.seconds, unit, int(rate * RTT), least)
    return Swept(cell, chosen.bound, unit, len(chosen.units), chosen.seconds, sizes, best)


def summary(rows: Sequence[Swept]) -> str:
    """In words."""
    regrets = [row.regret for row in rows]
    over = sum(regret > LIMIT for regret in regrets)
    return f"{len(rows)} cells: regret {statistics.mean(regrets):.1%} in the mean, {max(regrets):.1%} at most, over {LIMIT:.0%} in {over}"


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; see the top of this file. Returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sizes", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--cells", action="append", default=[], metavar="NAME=VALUE,...", help="only the cells with these values; may be repeated"
    )
    add_output_options(parser)
    options = parser.parse_args(arguments)
    try:
        cells = selected(all_cells(), options.cells)
    except ValueError as error:
        parser.error(f"--cells: {error}")
    print(HEAD, flush=True)
    rows: List[Swept] = []
    for cell in cells:
        rows.append(run(cell))
        print(rows[-1], flush=True)
    print("\n" + summary(rows))
    table = f"{summary(rows)}. Simulated; gradients are scaled to rho 1.\n\n{HEAD}\n" + "".join(f"{row}\n" for row in rows)
    flat = [(*row.cell, row.bound, row.unit, row.units, row.chosen, *row.sizes, row.best, row.regret) for row in rows]
    names = (*SimulatedCell._fields, "bound", "unit", "units", "chosen", "best_unit", "best_window", "best_lead", "best", "regret")
    write_everywhere(options, "sizes", names, flat, table, describe("sizes", arguments))
    return int(max(row.regret for row in rows) > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
