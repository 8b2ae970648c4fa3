"""What a message and an update cost a server: processor time per tensor, with tensors alone and in groups.

    python -m benchmarks.servers
    python -m benchmarks.servers --pairs 1 --variants plain,alone --optimizer adam

Two workers push and pull 192 tensors of 1 KB, and the server's processor time is read around the measured iterations. Nothing is scheduled:
workers send whole keys as plain ``dist_sync`` does, so that all variants differ in the servers alone. Each runs in processes of its own;
the order changes from pair to pair. Results are written as by benchmarks.run. The variants:

none           no optimizer: the servers only add up
plain          MXNet's own updates
alone          the optimizer as prophet_mx sends it, each tensor a key
groups         12 tensors are one key, updated in one call
runs           the same, but neighbours have different multipliers, so that each is a run of its own
none-groups    12 tensors are one key, no optimizer
"""

import argparse
import os
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from .comparison.metadata import describe
from .comparison.own_jobs import reported
from .comparison.results import add_output_options, write_everywhere
from .comparison.summaries import of_median

VARIANTS = ("none", "plain", "alone", "groups", "runs", "none-groups")
MARK = "server "  # starts the line with a result


class ServerTime(NamedTuple):
    """Processor time of the servers of a job: seconds since they started, or microseconds per tensor.

    Attributes
    ----------
    all : of all their threads, most of which carry messages.
    main : of their main threads, in which the optimizer runs. It is what others wait for.
    """

    all: float
    main: float


def server_time() -> ServerTime:
    """What the servers of this job have used."""
    import psutil

    found = [each for each in psutil.Process().parent().children(recursive=True) if each.environ().get("DMLC_ROLE") == "server"]
    everything = [process.cpu_times() for process in found]
    mains = [thread for process in found for thread in process.threads() if thread.id == process.pid]
    return ServerTime(
        sum(times.user + times.system for times in everything), sum(thread.user_time + thread.system_time for thread in mains)
    )


def measure(options: argparse.Namespace, variant: str) -> None:
    """One worker of a job. The first prints microseconds of the servers per tensor."""
    import mxnet as mx

    from prophet_mx.mxnet.slice_optimizer import SliceOptimizer

    kv = mx.kv.create("dist_sync")
    sizes = [options.size // 4] * options.tensors
    members = options.members if variant in ("groups", "runs", "none-groups") else 0
    groups = {}
    if members:
        numbers = range(options.tensors)
        groups = {
            place: tuple((number, options.size // 4) for number in numbers[first : first + members])
            for place, first in enumerate(numbers[::members])
        }
        sizes = [sum(elements + 1 for _, elements in group) for group in groups.values()]
    if not variant.startswith("none"):
        names = (
            {number: f"layer{number}_{'gamma' if number % 2 else 'beta'}" for number in range(options.tensors)}
            if variant == "runs"
            else None
        )
        settings: Dict[str, Any] = {"momentum": 0.9} if options.optimizer == "sgd" else {}
        optimizer = mx.optimizer.create(options.optimizer, learning_rate=1e-4, wd=1e-4, param_idx2name=names, **settings)
        if variant != "plain":
            optimizer = SliceOptimizer(optimizer, {}, [], [], len(sizes), len(sizes), False, groups, kv.num_workers)
        kv.set_optimizer(optimizer)
    gradients = [mx.nd.ones(size) for size in sizes]
    values = [mx.nd.zeros(size) for size in sizes]
    for key, value in enumerate(values):
        kv.init(key, value)

    def iterate(count: int) -> None:
        for _ in range(count):
            for key, (gradient, value) in enumerate(zip(gradients, values)):
                gradient[:] = 1  # dist_sync has overwritten it with the value, with words that no worker sends
                kv.pushpull(key, gradient, out=value, priority=-key)
            mx.nd.waitall()

    iterate(options.warmup)
    kv._barrier()
    before = server_time()
    kv._barrier()
    iterate(options.iterations)
    kv._barrier()
    if kv.rank == 0:
        tensors = options.iterations * options.tensors
        print(MARK, *((now - then) / tensors * 1e6 for now, then in zip(server_time(), before)), flush=True)
    kv._barrier()
    if not variant.startswith("none") and not all((value[: size // 2] < 0).asnumpy().all() for size, value in zip(sizes, values)):
        raise AssertionError("a worker got wrong values: what was measured is not a working server")


def run(options: argparse.Namespace, variant: str) -> ServerTime:
    """One job's microseconds per tensor."""
    names = ("tensors", "members", "size", "iterations", "warmup", "optimizer")
    return ServerTime(*map(float, reported(options, "benchmarks.servers", variant, names, MARK)[0].split()))


def table(found: Dict[str, List[ServerTime]]) -> str:
    """Medians over the pairs with their intervals, and those of the ratios to plain within the pairs, as Markdown."""
    lines = [
        "| server, us per tensor | all threads (95%) | of plain (95%) | main thread (95%) | of plain (95%) |",
        "|---|---:|---:|---:|---:|",
    ]
    for variant, times in found.items():
        cells = []
        for column in range(2):
            mine = [each[column] for each in times]
            plain = [each[column] for each in found.get("plain", ())]
            cells += [of_median(mine).text(0), of_median([one / other for one, other in zip(mine, plain)]).text(2) if plain else ""]
        lines.append(f"| {variant} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.servers", description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5, help="runs of each variant")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="separated by commas")
    parser.add_argument("--tensors", type=int, default=192)
    parser.add_argument("--members", type=int, default=12, help="tensors in a group")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a tensor")
    parser.add_argument("--optimizer", default="sgd", help="sgd has momentum")
    parser.add_argument("--iterations", type=int, default=150)
    parser.add_argument("--warmup", type=int, default=40, help="iterations before the measured ones")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one run")
    parser.add_argument("--worker", choices=VARIANTS, help=argparse.SUPPRESS)
    add_output_options(parser)
    options = parser.parse_args(arguments)
    if options.worker:
        measure(options, options.worker)
        return 0
    variants = options.variants.split(",")
    if unknown := sorted(set(variants) - set(VARIANTS)):
        parser.error(f"--variants {unknown[0]}: one of {', '.join(VARIANTS)}")
    found: Dict[str, List[ServerTime]] = {variant: [] for variant in variants}
    load = [os.getloadavg()[0]]
    for pair in range(options.pairs):
        for variant in variants[:: (-1) ** pair]:
            found[variant].append(run(options, variant))
            newest = found[variant][-1]
            text = f"pair {pair + 1} of {options.pairs}: {variant} {newest.all:.0f} us, main thread {newest.main:.0f} us"
            print(text, file=sys.stderr, flush=True)
        load.append(os.getloadavg()[0])
    text = (
        f"{options.tensors} tensors of {options.size} bytes, {options.workers} workers, 1 server, {options.pairs} pairs of "
        f"{options.iterations} iterations, optimizer {options.optimizer}, {os.cpu_count()} cores, load average {min(load):.1f} to "
        f"{max(load):.1f} (the benchmark itself makes about 2). No model, no shaped network: nothing is scaled or emulated.\n\n"
        f"{table(found)}"
    )
    print("\n" + text)
    rows = [(pair, variant, *(round(each, 2) for each in times[pair])) for variant, times in found.items() for pair in range(options.pairs)]
    write_everywhere(options, "servers", ("pair", "variant", "us", "main_us"), rows, text, describe("servers", arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
