"""Starts and ends short jobs, one after another, with mixed scripts, endings, policies and sizes, and some of plain MXNet to compare with.

    python -m benchmarks.starts --starts 300
    python -m benchmarks.starts --first 117 --starts 1       the 118th job alone, as it was drawn

A job is right if every process ended by itself within the limit, each worker with the code that Python gives for its ending and with the
exact weights, and if the servers hold what was pushed last. What is exact: a loop's values are computed with whole numbers; Module.fit is
compared, bit for bit, with plain dist_sync. What the servers hold is read in their own processes, after they have ended.

Exit code 0: all jobs were right; 1: not so; 2: wrong argument. Nothing is left running.
"""

import argparse
import random
import re
import sys
import tempfile
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from prophet_mx import policies
from prophet_mx.cli.arguments import count
from prophet_mx.errors import ProphetError
from prophet_mx.launcher.launch import JobResult, run_job

from .jobs.whole_numbers import ITERATIONS, expected
from .soak import package_env

JOB = Path(__file__).with_name("jobs") / "starts.py"
LIMIT = 60.0  # seconds after which a job counts as hung; alone on the machine it takes 3 to 5
PLAIN_LIMIT = 20.0  # most of the plain jobs hang until they are ended: those that end while gradients are on their way
PLAIN_SHARE = 15  # so many jobs, then a plain one; each ending has its turn
CODES = {"return": 0, "push": 0, "raise": 1, "exit": 3}
POLICIES = tuple(policies.POLICIES)
UNITS = {("loop", True): "16KiB", ("module", True): "400", ("loop", False): "4MB", ("module", False): "4MB"}  # is it sliced?
# To see how each process ends by itself: the launcher ends all at the first failure.
WATCHED = "import subprocess, sys; print('watched: ended with', subprocess.call([sys.executable, *sys.argv[1:]]), flush=True)"


class Start(NamedTuple):
    """One job. ``hooked``: the script knows nothing of prophet_mx, and ``--schedule`` wraps its store."""

    script: str = "loop"
    ending: str = "return"
    workers: int = 2
    servers: int = 1
    policy: str = "prophet"
    sliced: bool = True
    hooked: bool = False

    @property
    def variant(self) -> str:
        return "plain" if self.hooked or self.policy == "plain" else "scheduled"


def drawn(number: int, seed: int) -> Start:
    """The job of this number; every ending comes as often as the others."""
    rng = random.Random(f"{seed} {number}")
    script = rng.choice(("loop", "module"))
    # What three workers send is added up as it arrives: exact only for whole numbers.
    return Start(
        script,
        list(CODES)[number % len(CODES)],
        rng.choice((2, 3)) if script == "loop" else 2,
        rng.choice((1, 2)),
        rng.choice(POLICIES),
        rng.random() < 0.5,
        rng.random() < 0.3,
    )


def run(start: Start, light: Sequence[str] = (), env: Optional[Mapping[str, str]] = None, limit: float = LIMIT) -> List[str]:
    """Run a job. What is wrong with it, in words: nothing if the list is empty; the job's output is the last of them.

    ``light`` and ``env``: what stands between Python and the script, and the environment, in place of that which users have.
    """
    env = {**package_env(), **(env or {})}
    # Servers end by themselves unless a worker raised an exception: that one does not wait for the others, and so does not tell them.
    grace = 1.0 if start.ending == "raise" else 20.0
    with tempfile.TemporaryDirectory(prefix="prophet-starts-") as folder:
        reference = module_reference(tuple(light), tuple(sorted(env.items()))) if start.script == "module" else None
        if reference:
            for name, arrays in reference.weights.items():
                np.savez(Path(folder, f"{name}.npz"), **arrays)
        how = {"PROPHET_POLICY": start.policy if start.policy != "plain" else "off", "PROPHET_UNIT": UNITS[start.script, start.sliced]}
        job = run_job(
            [sys.executable, "-c", WATCHED, *light, str(JOB), start.script, start.ending, folder, start.variant],
            start.workers,
            start.servers,
            env={**env, **how},
            timeout=limit,
            grace=grace,
            schedule=start.hooked,
        )
        wrong = wrong_ends(start, job)
        if not wrong and (start.script == "loop" and start.ending != "raise" or start.ending == "push"):
            wrong = wrong_servers(held(folder), reference.states if reference else loop_states(start))
    return wrong + [job.logs()] if wrong else []


def wrong_ends(start: Start, job: JobResult) -> List[str]:
    """How the processes ended, and what the workers say of their weights, where it is not right."""
    if job.exit_code != 0:
        return [f"hung: {job.reason}"]
    wrong = []
    said = f"all weights are right, policy {start.policy}, {'sliced' if start.sliced and start.policy != 'plain' else 'whole'}"
    for process in job.processes:
        if process.ended_by_launcher and start.ending != "raise":
            wrong.append(f"hung: {process.label}")
            continue
        [code] = re.findall(r"watched: ended with (-?\d+)", process.output) or [None]
        wanted = CODES[start.ending] if process.role == "worker" else 0
        if int(code or 0) != wanted:
            wrong.append(f"wrong code: {process.label} ended with {code}, not {wanted}")
        if process.role == "worker" and process.output.count(said) != 1:
            wrong.append(f"wrong values: {process.label} does not say {said!r}")
        if process.role == "worker" and "something went wrong in the middle" not in process.output and start.ending == "raise":
            wrong.append(f"wrong code: {process.label} does not show its exception")
    return wrong


# -- what the servers hold -----------------------------------------------------------------------------------------------------


def held(folder: str) -> Dict[int, np.ndarray]:
    """SGD's momentum of each parameter as all servers together held it at their end, slices put together, by the parameter's number."""
    parts: Dict[int, List[Any]] = {}
    for path in Path(folder).glob("server-*.npz"):
        with np.load(path) as kept:
            slices = dict(kept["slices"].tolist())
            for name in kept.files:
                if name != "slices":
                    key = int(name[len("state") :])
                    parts.setdefault(slices.get(key, key), []).append((key, kept[name].ravel()))
    return {number: np.concatenate([array for _, array in sorted(found, key=lambda pair: pair[0])]) for number, found in parts.items()}


def loop_states(start: Start) -> Dict[int, np.ndarray]:
    """What they hold after a job of the script 'loop'."""
    _, momenta = expected(ITERATIONS + (start.ending != "return"), start.workers)
    return {number: momentum.ravel() for number, momentum in enumerate(momenta)}


def wrong_servers(got: Dict[int, np.ndarray], wanted: Dict[int, np.ndarray]) -> List[str]:
    """Which parameters' last pushes the servers do not hold."""
    different = [
        str(number)
        for number in sorted({*wanted, *got})
        if number not in got or number not in wanted or got[number].tobytes() != wanted[number].tobytes()
    ]
    return [f"wrong values: the servers do not hold what was pushed last to the keys {', '.join(different)}"] if different else []


class Reference(NamedTuple):
    """What plain dist_sync makes of the script 'module': the weights after CHECKED batches and in the end, the servers' states."""

    weights: Dict[str, Dict[str, np.ndarray]]
    states: Dict[int, np.ndarray]


@lru_cache(maxsize=None)
def module_reference(light: Sequence[str], env: Sequence[Any]) -> Reference:
    """Made once for all jobs: with two workers it does not depend on the number of servers."""
    with tempfile.TemporaryDirectory(prefix="prophet-starts-") as folder:
        job = run_job([sys.executable, *light, str(JOB), "module", "push", folder, "reference"], env=dict(env), timeout=LIMIT, grace=20.0)
        if job.exit_code != 0:
            raise ProphetError(f"plain dist_sync, for comparison, failed\n{job.logs()}")
        weights = {}
        for name in ("middle", "end"):
            with np.load(Path(folder, f"{name}.npz")) as kept:
                weights[name] = dict(kept)
        return Reference(weights, held(folder))


def starts(count: int, first: int, seed: int) -> int:
    """The jobs from the number ``first`` on, and now and then a plain one; the exit code says how ours went."""
    ours, plain, drew = Counter(), Counter(), Counter()
    for number in range(first, first + count):
        start = drawn(number, seed)
        drew.update(f"{name} {value}" for name, value in start._asdict().items())
        wrong = run(start)
        ours[wrong[0].partition(":")[0] if wrong else "right"] += 1
        if wrong:
            print(f"job {number} of seed {seed}, {start}:\n" + "\n".join(wrong)[-4000:], flush=True)
        if (number + 1) % PLAIN_SHARE == 0:
            wrong = run(start._replace(policy="plain", hooked=False), limit=PLAIN_LIMIT)
            plain[wrong[0].partition(":")[0] if wrong else "right"] += 1
        if (number + 1 - first) % 50 == 0:
            print(f"{number + 1 - first} of {count}: {ours['right']} right", flush=True)
    print("drawn: " + ", ".join(f"{number} {what}" for what, number in sorted(drew.items())))
    for counter, who in ((ours, "scheduled"), (plain, "plain MXNet")):
        print(
            f"{sum(counter.values())} starts and exits, {who}: " + ", ".join(f"{number} {what}" for what, number in counter.most_common()),
            flush=True,
        )
    return 0 if ours["right"] == count else 1


def main(argv: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--starts", type=count, default=300, metavar="N", help="number of jobs (default: 300)")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first job (default: 0)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the jobs (default: 1)")
    arguments = parser.parse_args(argv)
    if arguments.starts < 1 or arguments.first < 0:
        parser.error("--starts is above 0, --first is not negative")
    return starts(arguments.starts, arguments.first, arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
