"""The command ``prophet-mx predict``: what scheduling would do for a recorded job on a network, and whether it can help at all."""

import argparse
import json
from typing import Optional

from ..profiling.gradient_profile import GradientProfile
from ..quantities import format_rate
from ..simulation.cluster import MAX_MACHINES
from ..simulation.compute_times import complete
from ..simulation.layout import PLAIN
from ..simulation.predict import MARGIN, Prediction, UsefulRates, as_dict, load_costs, milliseconds, predict, useful_rates
from ..simulation.simulator import POLICIES
from .arguments import add_policies, compute_seconds, link_rate, listed, whole

_EPILOG = f"""\
example, a profile that a job kept with PROPHET_PROFILE=job.json, on another network:
  prophet-mx predict --profile job.json --bandwidth 10Gbit --workers 4 --servers 2

columns:
  ms        expected time of an iteration in steady state
  speed-up  time with stock MXNet ('plain') / time with this policy
  / bound   time / the lower bound, which no order of sending can beat

A recorded profile knows when gradients become ready, not how long forward takes. Without
--compute that is guessed from the steps, and said so, or refused if there are too few;
the time of an iteration of one worker and one server on one machine is close to it. Give as the bandwidth what TCP
payload really gets (goodput): about 94% of an Ethernet link's nominal rate. Messages cost
nothing unless --costs says what: python -m benchmarks.validate_simulator --fit writes
such a file. A gain under {MARGIN:.0%} is called none: predictions are wrong by that much.
'prophet-mx simulate' has more to vary: jitter, stragglers, round trips, many clusters.

exit codes:
  0  predicted, whether scheduling helps or not
  2  wrong argument, or no usable profile"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add ``predict`` to the command ``prophet-mx``."""
    parser = subparsers.add_parser(
        "predict",
        help="say what scheduling would do for a recorded job, and when it cannot help",
        description="Predict a job's iteration time with each policy from its profile and the bandwidth of the network.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--profile", required=True, metavar="FILE", help="profile of the job, as PROPHET_PROFILE keeps it")
    add("--bandwidth", required=True, type=listed(link_rate), metavar="RATE[,RATE...]", help="goodput of each machine's link, each way")
    add("--workers", type=whole(MAX_MACHINES), default=2, metavar="N", help="number of workers (default: 2)")
    add("--servers", type=whole(MAX_MACHINES), default=1, metavar="N", help="number of servers (default: 1)")
    add_policies(parser, POLICIES)
    add(
        "--compute",
        type=compute_seconds,
        metavar="TIME",
        help="compute time of an iteration, without communication (default: as in the profile, or estimated)",
    )
    add("--costs", metavar="FILE", help="JSON file of what messages cost (default: nothing)")
    add("--no-range", action="store_true", help="do not look for the bandwidths at which scheduling pays, which takes some seconds")
    add("--json", action="store_true", help="print JSON: seconds, bytes/s")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    profile, source = complete(GradientProfile.load(arguments.profile), arguments.compute)
    costs = load_costs(arguments.costs) if arguments.costs else None
    predictions = [
        predict(profile, rate, arguments.workers, arguments.servers, arguments.policy, costs=costs) for rate in arguments.bandwidth
    ]
    useful = None
    if not arguments.no_range:
        useful = useful_rates(profile, arguments.workers, arguments.servers, costs=costs)
    if arguments.json:
        print(
            json.dumps(
                {
                    "profile": profile.name,
                    "compute": source,
                    "predictions": [as_dict(p) for p in predictions],
                    "useful_bandwidths": useful and useful._asdict(),
                },
                indent=1,
            )
        )
        return 0
    print(
        f"{profile.name}: {len(profile.gradients)} gradients in {len(profile.steps)} steps, {profile.total_bytes / 1e6:.1f} MB; "
        f"compute {milliseconds(profile.compute_seconds)}, {source}"
    )
    for prediction in predictions:
        print(table(prediction))
    if not arguments.no_range:
        print("\n" + where(useful, arguments.workers, arguments.servers))
    return 0


def table(prediction: Prediction) -> str:
    """The times of one cluster, and the verdict."""
    plain = prediction.seconds[PLAIN]
    lines = [
        (
            f"\n{prediction.workers} worker(s), {prediction.servers} server(s), {format_rate(prediction.rate)} each: "
            f"communication {milliseconds(prediction.communication)}, rho {prediction.rho:.3g}"
        ),
        f"{'':16}{'ms':>10}{'speed-up':>10}{'/ bound':>9}",
    ]
    for name, seconds in prediction.seconds.items():
        lines.append(f"{name:16}{1e3 * seconds:10.1f}{plain / seconds:10.2f}{seconds / prediction.bound:9.3f}")
    lines.append(f"{'lower bound':16}{1e3 * prediction.bound:10.1f}{plain / prediction.bound:10.2f}{1:9.3f}")
    return "\n".join(lines + [prediction.verdict.sentence])


def where(useful: Optional[UsefulRates], workers: int, servers: int) -> str:
    """At which bandwidths scheduling pays, in a sentence."""
    job = f"For this job with {workers} worker(s) and {servers} server(s)"
    if useful is None:
        return f"{job} no bandwidth was found at which the policy prophet gains {MARGIN:.0%}."
    low = _rounded(useful.low) + (", the lowest looked at," if useful.open_below else "")
    high = _rounded(useful.high) + (", the highest looked at" if useful.open_above else "")
    return (
        f"{job} the policy prophet gains {MARGIN:.0%} or more at bandwidths from {low} to {high}; most, {useful.gain:.0%}, "
        f"at about {_rounded(useful.best)}."
    )


def _rounded(rate: float) -> str:
    return format_rate(float(f"{8 * rate:.2g}") / 8)
