"""How the jobs of a cell are run: in rounds, in each of which every method has its turn, and by one rule for running a job again.

A round runs all methods in an order drawn anew. A job is set aside if others took more than a stated share of the processors while it was
measured, if the links gave less than 90% of their rate before it, or if it failed. Such jobs are run again in the same way, until each
method has one that is not set aside, or has had its tries. Of jobs that were all set aside, the least disturbed one counts. The time of an
iteration is not looked at: the rule cannot prefer a method, or a result.
"""

import random
from typing import Callable, Dict, List, NamedTuple, Sequence, Set

from ..testbed import TestbedError
from ..testbed.goodput import Goodput
from .rows import Attempt, Job

LEAST_GOODPUT = 0.9  # of the links' rate; headers take 5% of it


class Rule(NamedTuple):
    """When a job is run again.

    Attributes
    ----------
    stolen : cores that others may take while a job is measured.
    tries : jobs of a method per round, at most.
    """

    stolen: float
    tries: int

    def objection(self, stolen: float, goodput: float) -> str:
        """Why a job is set aside, '' if it is not; ``stolen`` in cores, ``goodput`` as a share of the links' rate."""
        reasons = [f"links gave {goodput:.0%}"] if goodput < LEAST_GOODPUT else []
        return ", ".join(reasons + ([f"{stolen:.0%} of a core taken"] if stolen > self.stolen else []))


def conduct(
    methods: Sequence[str],
    run: Callable[[str], Job],
    measure: Callable[[], Goodput],
    rate: float,
    warmup: int,
    repeats: int,
    rule: Rule,
    order: random.Random,
    say: Callable[[Attempt], None] = lambda attempt: None,
) -> List[Attempt]:
    """All attempts at ``repeats`` jobs of each method, in the order in which they ran.

    ``run`` and ``measure`` raise TestbedError; a method whose jobs all fail in one round is not run in further ones. ``rate``: bytes/s of a
    link. ``say`` is told of each attempt as it ends.
    """
    attempts: List[Attempt] = []
    failed: Set[str] = set()
    for number in range(1, repeats + 1):
        pending = [name for name in methods if name not in failed]
        mine: List[Attempt] = []
        for _ in range(rule.tries):
            if not pending:
                break
            goodput = measure()
            for name in order.sample(pending, len(pending)):
                attempt = _attempt(name, number, run, goodput, goodput.link / rate, warmup, rule)
                mine.append(attempt)
                say(attempt)
            pending = [name for name in pending if all(attempt.aside for attempt in mine if attempt.method == name)]
        failed |= {name for name in pending if not any(attempt.job for attempt in mine if attempt.method == name)}
        attempts += _counted(mine, rate)
    return attempts


def _attempt(name: str, number: int, run: Callable[[str], Job], goodput: Goodput, share: float, warmup: int, rule: Rule) -> Attempt:
    try:
        job = run(name)
    except TestbedError as error:
        return Attempt(name, number, None, goodput, 0.0, f"failed: {error}")
    stolen = job.measured_stolen(warmup)
    return Attempt(name, number, job, goodput, stolen, rule.objection(stolen, share))


def _counted(attempts: Sequence[Attempt], rate: float) -> List[Attempt]:
    """A round's attempts; where all of a method's were set aside, the least disturbed one counts after all."""
    best: Dict[str, Attempt] = {}
    for name in {attempt.method for attempt in attempts}:
        ran = [attempt for attempt in attempts if attempt.method == name and attempt.job is not None]
        if ran and all(attempt.aside for attempt in ran):
            best[name] = min(ran, key=lambda attempt: (attempt.goodput.link < LEAST_GOODPUT * rate, attempt.stolen))
    return [attempt._replace(aside="") if attempt is best.get(attempt.method) else attempt for attempt in attempts]
