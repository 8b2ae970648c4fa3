"""How the jobs of a cell are run: in rounds, in each of which every method has its turn, and by one rule for running a job again.

A round runs all methods in an order drawn anew. A job is set aside if the links gave less than 90% of their rate before it, or if it
failed. Such jobs are run again in the same way, until each method has one that is not set aside, or has had its tries. Of jobs that were
all set aside, the one with the best links counts. The time of an iteration is not looked at: the rule cannot prefer a method, or a result.
"""

import random
from typing import Callable, Dict, List, Sequence, Union

from ..testbed import TestbedError
from ..testbed.goodput import Goodput
from .rows import Attempt, JobRow, MeasuredJob

LEAST_GOODPUT = 0.9  # of the links' rate; headers take 5% of it
FAILED = "failed: "  # begins why a job is set aside that did not end


def conduct(
    number: int,
    methods: Sequence[str],
    run: Callable[[str], MeasuredJob],
    measure: Callable[[], Goodput],
    rate: float,
    tries: int,
    order: random.Random,
    say: Callable[[Attempt], None] = lambda attempt: None,
) -> List[Attempt]:
    """All attempts at a job of each method in round ``number``, in the order in which they ran.

    ``run`` and ``measure`` raise TestbedError. ``rate``: bytes/s of a link. ``tries``: jobs of a method, at most. ``say`` is told of each
    attempt as it ends.
    """
    attempts: List[Attempt] = []
    pending = list(methods)
    for _ in range(tries):
        if not pending:
            break
        goodput = measure()
        for name in order.sample(pending, len(pending)):
            attempt = _attempt(name, number, run, goodput, goodput.link / rate)
            attempts.append(attempt)
            say(attempt)
        pending = [name for name in pending if all(attempt.aside for attempt in attempts if attempt.method == name)]
    return _counted(attempts)


def going_on(methods: Sequence[str], earlier: Sequence[Union[Attempt, JobRow]]) -> List[str]:
    """The methods for a further round: not those whose jobs have all failed in one."""
    given_up = set()
    for number in {each.round for each in earlier}:
        for name in methods:
            mine = [each for each in earlier if (each.round, each.method) == (number, name)]
            if mine and all(each.aside.startswith(FAILED) for each in mine):
                given_up.add(name)
    return [name for name in methods if name not in given_up]


def _attempt(name: str, number: int, run: Callable[[str], MeasuredJob], goodput: Goodput, share: float) -> Attempt:
    try:
        job = run(name)
    except TestbedError as error:
        return Attempt(name, number, None, goodput, f"{FAILED}{error}")
    return Attempt(name, number, job, goodput, f"links gave {share:.0%}" if share < LEAST_GOODPUT else "")


def _counted(attempts: Sequence[Attempt]) -> List[Attempt]:
    """A round's attempts; where all of a method's were set aside, the one with the best links counts after all."""
    best: Dict[str, Attempt] = {}
    for name in {attempt.method for attempt in attempts}:
        ran = [attempt for attempt in attempts if attempt.method == name and attempt.job is not None]
        if ran and all(attempt.aside for attempt in ran):
            best[name] = max(ran, key=lambda attempt: attempt.goodput.link)
    return [attempt._replace(aside="") if attempt is best.get(attempt.method) else attempt for attempt in attempts]
