"""What scheduling costs per key: many tiny gradients, where the network does nothing and all time is overhead.

    python -m benchmarks.overhead
    python -m benchmarks.overhead --pairs 3 --keys 100 --policy fifo

Two workers and one server on this machine call ``pushpull`` for 200 keys of 10 floats and wait for the values, some hundred
times. Plain ``dist_sync`` and ScheduledKVStore run in pairs, each in processes of its own; the order changes from pair to pair,
so that whatever else the machine does hits both. Results are written as by benchmarks.run. Per key:

main thread, CPU   processor time of the thread that calls pushpull, inside these calls
main thread, wall  the time these calls take; more than the CPU time if the thread waited, or the machine was busy
worker CPU         processor time of all threads of the worker process, waiting for the values included

The targets are 1.4 times plain dist_sync for the main thread and 1.15 times for the worker, on a machine with nothing else to
do, where plain dist_sync took 7 us of the main thread and 32 us of the worker. On a busy machine processor time grows too
(caches, shared cores, more sleeping and waking): look at the ratios, and at the load.
"""

import argparse
import json
import os
import statistics
import sys
import time
from typing import Dict, List, Optional, Sequence

from .comparison.metadata import describe
from .comparison.own_jobs import reported
from .comparison.results import add_output_options, write_everywhere
from .comparison.summaries import of_median

COLUMNS = {"main_cpu": "main thread, CPU", "main_wall": "main thread, wall", "worker_cpu": "worker CPU"}
TARGETS = {"main_cpu": 10, "main_wall": 10, "worker_cpu": 37}  # microseconds per key, scheduled
MARK = "overhead "  # starts the line with a worker's result


def measure(options: argparse.Namespace, kind: str) -> Dict[str, float]:
    """One worker's microseconds per key, as medians over the iterations (the worker's CPU: over all of them)."""
    import mxnet as mx

    from prophet_mx import ScheduledKVStore

    kv = mx.kv.create("dist_sync")
    if kind != "plain":
        kv = ScheduledKVStore(kv, policy=options.policy)
    keys = [f"key{i}" for i in range(options.keys)]
    # Zeros, because plain dist_sync on one CPU device overwrites the gradient with the sum: anything else would grow.
    gradients = [mx.nd.zeros(options.size) for _ in keys]
    values = [mx.nd.zeros(options.size) for _ in keys]
    for key, value in zip(keys, values):
        kv.broadcast(key, value, out=value)
    walls: List[float] = []
    cpus: List[float] = []

    def iterate() -> None:
        wall, cpu = time.perf_counter(), time.thread_time()
        for i, key in enumerate(keys):
            kv.pushpull(key, gradients[i], out=values[i], priority=-i)
        cpus.append(time.thread_time() - cpu)
        walls.append(time.perf_counter() - wall)
        mx.nd.waitall()

    for _ in range(options.warmup):
        iterate()
    walls.clear()
    cpus.clear()
    process = time.process_time()
    for _ in range(options.iterations):
        iterate()
    process = time.process_time() - process
    for gradient in gradients:
        gradient[:] = kv.rank + 1
    iterate()
    expected = sum(range(1, kv.num_workers + 1))
    if any((value.asnumpy() != expected).any() for value in values):
        raise AssertionError("a worker got wrong values: what was measured is not a working store")
    per_key = 1e6 / options.keys
    return {
        "main_cpu": statistics.median(cpus) * per_key,
        "main_wall": statistics.median(walls) * per_key,
        "worker_cpu": process / options.iterations * per_key,
    }


def run(options: argparse.Namespace, kind: str) -> Dict[str, float]:
    """Start one job and return the mean over its workers."""
    lines = reported(options, "benchmarks.overhead", kind, ("keys", "size", "iterations", "warmup", "policy"), MARK)
    if len(lines) != options.workers:
        raise RuntimeError(f"{len(lines)} of {options.workers} workers reported their result")
    found = [json.loads(line) for line in lines]
    return {column: statistics.mean(worker[column] for worker in found) for column in COLUMNS}


def table(plain: Sequence[Dict[str, float]], scheduled: Sequence[Dict[str, float]]) -> str:
    """Medians over the pairs, and of the ratios within the pairs, with their intervals, as Markdown."""
    lines = ["| us per key | plain (95%) | scheduled (95%) | ratio (95%) | target, scheduled |", "|---|---:|---:|---:|---:|"]
    for column, title in COLUMNS.items():
        before, after = [run[column] for run in plain], [run[column] for run in scheduled]
        ratio = of_median([b / a for a, b in zip(before, after)])
        cells = [title, of_median(before).text(1), of_median(after).text(1), ratio.text(2), str(TARGETS[column])]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """The command line; returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.overhead", description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=5, help="runs of each kind")
    parser.add_argument("--keys", type=int, default=200)
    parser.add_argument("--size", type=int, default=10, help="floats in a key")
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--warmup", type=int, default=30, help="iterations before the measured ones")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--policy", default="prophet")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one run")
    parser.add_argument("--worker", choices=("plain", "scheduled"), help=argparse.SUPPRESS)
    add_output_options(parser)
    options = parser.parse_args(arguments)
    for name in ("pairs", "keys", "size", "iterations", "workers"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: at least 1")
    if options.worker:
        # One write: both workers' lines may go to the same pipe.
        sys.stdout.write(MARK + json.dumps(measure(options, options.worker)) + "\n")
        return 0
    plain: List[Dict[str, float]] = []
    scheduled: List[Dict[str, float]] = []
    load = [os.getloadavg()[0]]
    for pair in range(options.pairs):
        for kind in (("plain", "scheduled"), ("scheduled", "plain"))[pair % 2]:
            (scheduled if kind == "scheduled" else plain).append(run(options, kind))
        print(
            f"pair {pair + 1} of {options.pairs}: plain {_brief(plain[-1])}; scheduled {_brief(scheduled[-1])}", file=sys.stderr, flush=True
        )
        load.append(os.getloadavg()[0])
    text = (
        f"{options.keys} keys of {options.size} floats, {options.workers} workers, 1 server, {options.pairs} pairs of "
        f"{options.iterations} iterations, policy {options.policy}, {os.cpu_count()} cores, load average {min(load):.1f} to "
        f"{max(load):.1f} (the benchmark itself makes about 2). No model, no shaped network: nothing is scaled or emulated.\n\n"
        f"{table(plain, scheduled)}"
    )
    print("\n" + text)
    kinds = (("plain", plain), ("scheduled", scheduled))
    rows = [(pair, kind, *(runs[pair][column] for column in COLUMNS)) for kind, runs in kinds for pair in range(options.pairs)]
    write_everywhere(options, "overhead", ("pair", "kind", *COLUMNS), rows, text, describe("overhead", arguments))
    return 0


def _brief(result: Dict[str, float]) -> str:
    return ", ".join(f"{title} {result[column]:.1f}" for column, title in COLUMNS.items())


if __name__ == "__main__":
    sys.exit(main())
