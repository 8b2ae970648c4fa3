"""The set-up of Prophet's paper at other rates of the links: simulated with the profiles that jobs of a published result have learned.

    python -m benchmarks.paper paper-setup --rates 1Gbit,2Gbit,10Gbit

The result is one of ``benchmarks.devices --learn``. Each of its cells is simulated at each rate with the compute time of its device, and
its measured times stand beside. The simulator has no P3: ``priority`` stands for it, which is P3's order and slices with limits. Prophet
is compared with the faster of ``priority`` and ``credit``: the paper's claim is about such priority-based scheduling. A message costs what
benchmarks/results/simulator was fitted with; nothing, if that is not published.

Exit code 1 if the result is not published or has no profiles.
"""

import argparse
import statistics
import sys
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from prophet_mx.cli.arguments import checked
from prophet_mx.errors import ConfigError, ProphetError
from prophet_mx.profiling.compute_times import with_compute
from prophet_mx.profiling.gradient_profile import GradientProfile
from prophet_mx.quantities import format_rate, parse_rate
from prophet_mx.simulation.predict import predicted_seconds

from .comparison.metadata import describe
from .comparison.results import Result, add_output_options, load, write_everywhere
from .comparison.rows import JobRow
from .comparison.summaries import summarise
from .devices import DeviceCell
from .testbed.exits import exit_code
from .validate_simulator import COSTS_FILE, read_costs

GOODPUT = 0.95  # of a link's rate
POLICIES = ("plain", "priority", "credit", "prophet")
RIVALS = ("priority", "credit")
MEASURED = {"pushpull": "plain", "p3": "priority", "credit": "credit", "prophet": "prophet"}  # method -> the policy it stands beside


class Point(NamedTuple):
    """A cell at a rate (bytes/s): ms per iteration by policy, measured or simulated."""

    cell: str
    rate: float
    how: str
    plain: Optional[float]
    priority: Optional[float]
    credit: Optional[float]
    prophet: Optional[float]

    @property
    def gain(self) -> Optional[float]:
        """By how much prophet is faster than the faster of RIVALS, as a share; None if one of them is not known."""
        rivals = [time for time in (getattr(self, name) for name in RIVALS) if time is not None]
        return min(rivals) / self.prophet - 1 if self.prophet and len(rivals) == len(RIVALS) else None


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; see the top of this file. Returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("question", help="the published result")
    parser.add_argument(
        "--rates", type=checked(_rates), default="1Gbit,2Gbit,3Gbit,4Gbit,5Gbit,7Gbit,10Gbit", help="of the links (default %(default)s)"
    )
    add_output_options(parser)
    options = parser.parse_args(arguments)
    try:
        result = load(options.question)
        if result is None or not result.about.get("profiles"):
            raise ConfigError(f"{options.question} has no profiles: python -m benchmarks.questions {options.question} --publish")
        costs = read_costs(COSTS_FILE)[0] if COSTS_FILE.exists() else {}
        points = points_of(result, _rates(options.rates), costs)
    except (ProphetError, OSError) as error:
        return exit_code(error) if isinstance(error, ProphetError) else 1
    text = table(points, costs)
    print(text)
    about = {**describe("paper", arguments), "costs": costs, "of": result.about["commit"]}
    write_everywhere(options, "paper", Point._fields, points, text, about)
    return 0


def _rates(text: str) -> List[float]:
    return [parse_rate(rate) for rate in text.split(",")]


def points_of(result: Result, rates: Sequence[float], costs: Mapping[str, float]) -> List[Point]:
    """Each cell as it was measured, and each training of them, which is the same at all rates, simulated with the profile of its first
    cell. Raises ProfileError and ConfigError."""
    points: Dict[str, List[Point]] = {}
    known = result.about["profiles"]
    for cell in known:
        points.setdefault(_training(cell), []).append(
            measured(cell, DeviceCell.parse(cell).cluster.rate, [row for row in result.rows if row.cell == cell])
        )
    for training, found in points.items():
        first = found[0].cell
        profile = with_compute(GradientProfile.from_json(known[first]["profile"]), known[first]["compute"])
        cluster = DeviceCell.parse(first).cluster
        for rate in rates:
            times = [
                round(1e3 * predicted_seconds(profile, GOODPUT * rate, cluster.workers, cluster.servers, policy, costs=costs), 1)
                for policy in POLICIES
            ]
            found.append(Point(training, rate, "simulated", *times))
    return [point for found in points.values() for point in found]


def _training(cell: str) -> str:
    return cell.rsplit(",rate=", 1)[0]


def measured(cell: str, rate: float, rows: Sequence[JobRow]) -> Point:
    """What the jobs of a cell took."""
    times: Dict[str, Any] = dict.fromkeys(POLICIES)
    for found in summarise(rows, ()):
        times.update(
            {MEASURED[name]: round(summary.time.median, 1) for name, summary in found.methods.items() if name in MEASURED and summary.jobs}
        )
    return Point(cell, rate, "measured", **times)


def table(points: Sequence[Point], costs: Mapping[str, float]) -> str:
    """All points, and in a sentence what they say of the claim."""
    lines = [
        "| cell | links | | plain `dist_sync` | P3 (simulated: `priority`) | `credit` | `prophet` | `prophet` against the faster of both |",
        "|---|---:|---|---:|---:|---:|---:|---:|",
    ]
    for point in points:
        times = " | ".join("" if time is None else f"{time:.0f}" for time in (getattr(point, name) for name in POLICIES))
        cell = _training(point.cell)
        gain = "" if point.gain is None else f"{point.gain:+.0%}"
        lines.append(f"| {cell} | {format_rate(point.rate)} | {point.how} | {times} | {gain} |")
    said = []
    for how in ("measured", "simulated"):
        gains = [point.gain for point in points if point.how == how and point.gain is not None]
        if gains:
            said.append(f"{how}: {min(gains):+.0%} to {max(gains):+.0%}, in the median {statistics.median(gains):+.0%}")
    messages = "cost what they were fitted with" if costs else "cost nothing"
    claim = f"Speed of `prophet` against the faster of both, {'; '.join(said)}."
    model = f"In the simulator messages {messages}, and links carry {GOODPUT:.0%} of their rate."
    return "\n".join(lines) + f"\n\n{claim} {model}\n"


if __name__ == "__main__":
    sys.exit(main())
