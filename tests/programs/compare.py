"""The differential fuzzer of whole programs: each drawn program runs as a job with plain dist_sync, and as a job with ScheduledKVStore.

    python -m programs.compare --seeds 200              in tests/
    python -m programs.compare --first 117 --seeds 1    one program again, by its seed
    python -m programs.compare --always numpy --shrink --without waits,forks

Every value that a worker sees must be the same, bit for bit, and every process must end by itself with exit code 0. What is not so is
printed with the seed, the program, and the output of all processes. --shrink then looks for a smaller program that fails as well.

Exit code 0: all programs were the same; 1: not so; 2: wrong argument.
"""

import argparse
import pickle
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Counter, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from programs.generator import DIMENSIONS, Program, drawn
from support.cluster import run_cluster

JOB = Path(__file__).with_name("job.py")
LIMIT = 40.0  # seconds after which a job counts as hung; alone on the machine it takes 3 to 5
PLAIN_RUNS = 3  # more, of a program that differs

Seen = List[Tuple[str, int, List[Any]]]


class Failure(NamedTuple):
    kind: str  # 'different', 'failed', or 'plain failed': then the generator, or MXNet, is wrong
    text: str


def failure(program: Program) -> Optional[Failure]:
    """Run a program in both ways; None if it is right."""
    with tempfile.TemporaryDirectory(prefix="prophet-programs-") as folder:
        try:
            plain, _ = job(program, "plain", folder)
        except AssertionError as error:
            return Failure("plain failed", str(error))
        files = {f"PROPHET_{name.upper()}": f"{folder}/{name}" for name in ("profile", "timeline") if program.has(name)}
        for _ in range(2 if program.has("profile") else 1):
            try:
                scheduled, output = job(program, "scheduled", folder, {**dict(program.settings), **files})
            except AssertionError as error:
                return Failure("failed", str(error))
            found = differences(plain, scheduled)
            if found and not plain_wavers(program, folder, scheduled):
                return Failure("different", "\n".join([*found[:12], output]))
    return None


def plain_wavers(program: Program, folder: str, scheduled: Sequence[Seen]) -> bool:
    """Whether another run with plain dist_sync sees what the scheduled one saw: then MXNet itself is not of one mind."""
    for _ in range(PLAIN_RUNS):
        try:
            plain, _ = job(program, "plain", folder)
        except AssertionError:
            continue
        if not differences(plain, scheduled):
            print(f"seed {program.seed}: two runs with plain dist_sync saw different values", flush=True)
            return True
    return False


def job(program: Program, variant: str, folder: str, env: Optional[Mapping[str, str]] = None) -> Tuple[List[Seen], str]:
    """What each worker saw, by rank, and the output of all. AssertionError, with it, if a process did not end by itself with 0."""
    result = run_cluster(
        JOB,
        program.workers,
        program.servers,
        env={**dict(program.env), **(env or {})},
        role_env={"server": {"MXNET_ENGINE_TYPE": "ThreadedEnginePerDevice"}} if variant == "plain" else {},  # all of it is MXNet's
        args=[variant, folder, program.seed, len(program.iterations), ",".join(program.dimensions)],
        timeout=LIMIT,
        grace=10,
    )
    stuck = [process.label for process in result.processes if process.ended_by_launcher]
    if stuck:
        raise AssertionError(f"did not end: {', '.join(stuck)}\n{result.logs()}")
    return [pickle.loads(Path(folder, f"{rank}.pickle").read_bytes()) for rank in range(program.workers)], result.logs()


def differences(plain: Sequence[Seen], scheduled: Sequence[Seen]) -> List[str]:
    """In words, where two jobs differ by a bit, the first first."""
    found = []
    for rank, (expected, got) in enumerate(zip(plain, scheduled)):
        if [seen[:2] for seen in expected] != [seen[:2] for seen in got]:
            found.append(f"rank {rank}: saw other values, {len(got)} and not {len(expected)}")
        for (what, key, values), (_, _, others) in zip(expected, got):
            for value, other in zip(values, others):
                if (value.dtype, value.shape, value.tobytes()) != (other.dtype, other.shape, other.tobytes()):
                    apart = f"{value.ravel()[:4]} with plain, {other.ravel()[:4]} scheduled"
                    found.append(f"rank {rank}, {what}, key {key}: {other.dtype} {other.shape}: {apart}, {(value != other).sum()} elements")
    return found


def shrunk(program: Program, kind: str) -> Program:
    """A smaller program of the same seed that fails alike: with fewer dimensions, then with fewer iterations."""

    def smaller(dimensions: Sequence[str], iterations: int) -> Optional[Program]:
        candidate = drawn(program.seed, only=(), always=dimensions, iterations=iterations)
        found = failure(candidate)
        return candidate if found is not None and found.kind == kind else None

    for name in program.dimensions:
        rest = [other for other in program.dimensions if other != name]
        program = smaller(rest, len(program.iterations)) or program
    for count in range(1, len(program.iterations)):
        found = smaller(program.dimensions, count)
        if found is not None:
            return found
    return program


def fuzz(seeds: Sequence[int], draw: Callable[[int], Program], shrink: bool) -> int:
    """Run the programs of these seeds; how many of them are not right."""
    kinds: Counter = Counter()
    began = time.monotonic()
    for done, seed in enumerate(seeds, 1):
        program = draw(seed)
        found = failure(program)
        kinds[found.kind if found else "the same"] += 1
        if found:
            print(f"{found.kind.upper()}\n{program.text()}\n{found.text}\n", flush=True)
            if shrink:
                print(f"SHRUNK\n{shrunk(program, found.kind).text()}\n", flush=True)
        if done % 10 == 0:
            print(f"{done} of {len(seeds)} after {time.monotonic() - began:.0f} s: {dict(kinds)}", flush=True)
    print(
        f"{len(seeds)} programs from seed {seeds[0]} on: " + ", ".join(f"{number} {kind}" for kind, number in kinds.most_common()),
        flush=True,
    )
    return len(seeds) - kinds["the same"]


def names(text: str) -> List[str]:
    found = [name for name in text.split(",") if name]
    for name in found:
        if name not in DIMENSIONS:
            raise argparse.ArgumentTypeError(f"{name!r} is no dimension; there are {', '.join(DIMENSIONS)}")
    return found


def main(argv: Optional[Sequence[str]] = None) -> int:
    about = "\n".join(f"  {name:16} {what}" for name, what in DIMENSIONS.items())
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog=f"dimensions:\n{about}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=200, metavar="N", help="number of programs (default: 200)")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="seed of the first (default: 0)")
    parser.add_argument("--without", type=names, default=[], metavar="D,...", help="dimensions that no program has")
    parser.add_argument("--only", type=names, metavar="D,...", help="the only dimensions that programs may have")
    parser.add_argument("--always", type=names, default=[], metavar="D,...", help="dimensions that every program has")
    parser.add_argument("--iterations", type=int, metavar="N", help="only the first N iterations of each program")
    parser.add_argument("--shrink", action="store_true", help="look for a smaller program where one fails")
    parser.add_argument("--show", action="store_true", help="print the programs, and run none")
    arguments = parser.parse_args(argv)
    if arguments.seeds < 1 or arguments.first < 0 or arguments.iterations is not None and arguments.iterations < 1:
        parser.error("--seeds and --iterations are above 0, --first is not negative")
    seeds = range(arguments.first, arguments.first + arguments.seeds)

    def draw(seed: int) -> Program:
        return drawn(seed, arguments.without, arguments.only, arguments.always, arguments.iterations)

    if arguments.show:
        print("\n".join(draw(seed).text() for seed in seeds))
        return 0
    return 1 if fuzz(seeds, draw, arguments.shrink) else 0


if __name__ == "__main__":
    sys.exit(main())
