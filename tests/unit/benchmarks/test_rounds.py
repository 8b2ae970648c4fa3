"""In which order the jobs of a cell run, and which of them are run again."""

import random

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.comparison.rounds import conduct
from benchmarks.comparison.rows import MeasuredJob
from benchmarks.testbed import TestbedError
from benchmarks.testbed.goodput import Goodput

METHODS = ("pushpull", "p3", "prophet")
TRIES = 3
RATE = 125e6


def job(seconds=1.0):
    return MeasuredJob([{"starts": [0.0, seconds, 2 * seconds]}])


def links(share=0.95):
    return Goodput(share * RATE, RATE, 0.001)


def conducted(run, measure=links, repeats=3, seed=1):
    return conduct(METHODS, run, measure, RATE, repeats, TRIES, random.Random(seed))


def test_every_round_has_all_methods_in_an_order_of_its_own_that_the_seed_gives_again():
    first, again, other = (conducted(lambda name: job(), repeats=8, seed=seed) for seed in (1, 1, 2))
    orders = [[attempt.method for attempt in first if attempt.round == number] for number in range(1, 9)]
    assert all(sorted(order) == sorted(METHODS) for order in orders) and len(set(map(tuple, orders))) > 2
    assert [a.method for a in first] == [a.method for a in again] != [a.method for a in other]
    assert not any(attempt.aside for attempt in first)


def test_where_links_give_too_little_all_methods_run_again():
    shares = iter([0.85, 0.95])
    attempts = conducted(lambda name: job(), lambda: links(next(shares)), repeats=1)
    assert [attempt.aside for attempt in attempts] == ["links gave 85%"] * 3 + [""] * 3
    assert sorted(attempt.method for attempt in attempts[3:]) == sorted(METHODS)


def failing(times):
    """Runs jobs, of which the first ``times`` of P3 fail."""
    fails = iter([True] * times)

    def run(name):
        if name == "p3" and next(fails, False):
            raise TestbedError("a job did not end in time")
        return job()

    return run


def test_a_job_that_fails_is_kept_with_the_reason_and_run_again():
    mine = [attempt for attempt in conducted(failing(1)) if attempt.method == "p3"]
    assert [(attempt.round, bool(attempt.job), attempt.aside) for attempt in mine] == [
        (1, False, "failed: a job did not end in time"),
        (1, True, ""),
        (2, True, ""),
        (3, True, ""),
    ]


def test_a_method_whose_jobs_of_a_round_all_fail_is_not_run_in_the_next():
    attempts = conducted(failing(100))
    assert [attempt.round for attempt in attempts if attempt.method == "p3"] == [1, 1, 1]
    assert len(attempts) == 9 and all(attempt.aside for attempt in attempts if attempt.method == "p3")


def test_when_links_give_too_little_in_all_tries_the_best_links_count():
    shares = iter([0.7, 0.85, 0.8])
    attempts = conducted(lambda name: job(), lambda: links(next(shares)), repeats=1)
    mine = [(attempt.goodput.link / RATE, bool(attempt.aside)) for attempt in attempts if attempt.method == "p3"]
    assert mine == [(0.7, True), (0.85, False), (0.8, True)]


@given(
    st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)), min_size=40, max_size=40),
    st.lists(st.floats(0.8, 1), min_size=20, max_size=20),
)
def test_how_long_jobs_take_changes_nothing_in_which_run_again_and_which_count(jobs, shares):
    found = []
    for column in (0, 1):
        taken, goodputs = iter(jobs), iter(shares)
        attempts = conducted(lambda name: job(next(taken)[column]), lambda: links(next(goodputs)))
        found.append([(attempt.method, attempt.round, attempt.aside) for attempt in attempts])
        counted = [(attempt.method, attempt.round) for attempt in attempts if not attempt.aside]
        assert sorted(counted) == sorted((name, number) for name in METHODS for number in (1, 2, 3))
    assert found[0] == found[1]
