"""In which order the jobs of a cell run, and which of them are run again."""

import json
import random

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.comparison.command import CellOfJobs, compare, same_bound
from benchmarks.comparison.rounds import conduct, going_on
from benchmarks.comparison.rows import MeasuredJob, read
from benchmarks.run import parser
from benchmarks.testbed import TestbedError
from benchmarks.testbed.goodput import Goodput
from support.results import about
from support.results import job as made

METHODS = ("pushpull", "p3", "prophet")
TRIES = 3
RATE = 125e6


def job(seconds=1.0):
    return MeasuredJob([{"starts": [0.0, seconds, 2 * seconds]}])


def links(share=0.95):
    return Goodput(share * RATE, RATE, 0.001)


def conducted(run, measure=links, repeats=3, seed=1):
    order, attempts = random.Random(seed), []
    for number in range(1, repeats + 1):
        attempts += conduct(number, going_on(METHODS, attempts), run, measure, RATE, TRIES, order)
    return attempts


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


def turns(tmp_path, capsys, cells, *words, rounds=3):
    """Run a comparison that is called "mine" and can be resumed. Returns its exit code, the jobs that are written, and its metadata."""
    options = parser().parse_args(["--cell", "vgg16", "--results", str(tmp_path), "--name", "mine", "--repeats", str(rounds), *words])
    code = compare(cells, options, "run", {**about(cells=[cell.cell for cell in cells]), "code": "c"})
    capsys.readouterr()
    return code, read(tmp_path / "mine.csv"), json.loads((tmp_path / "mine.json").read_text())


def noted(ran, name, fails=()):
    """A cell that notes when it runs, and fails in these of its turns."""

    def run(kept):
        ran.append((name, kept.number))
        kept.found.setdefault("first", kept.number)
        if len([one for one in ran if one[0] == name]) in fails:
            raise TestbedError("no network")
        return [made("prophet", 160 + kept.number, kept.number, name)]

    return CellOfJobs(name, "", run)


def test_rounds_are_the_outer_loop_and_a_cell_that_fails_does_not_end_the_others(tmp_path, capsys):
    ran = []
    code, rows, _ = turns(tmp_path, capsys, [noted(ran, "a"), noted(ran, "b", fails=[1])])
    assert ran == [("a", 1), ("b", 1), ("a", 2), ("b", 1), ("a", 3), ("b", 2)] and code == 1
    assert [(row.cell, row.round) for row in rows] == [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2)]


def test_a_run_goes_on_where_it_was_interrupted(tmp_path, capsys):
    ran = []
    cells = [noted(ran, "a"), noted(ran, "b")]
    assert turns(tmp_path, capsys, cells, "--resume", "--until", "1")[0] == 0 and ran == [("a", 1), ("b", 1)]
    code, rows, described = turns(tmp_path, capsys, cells, "--resume")
    assert code == 0 and ran[2:] == [("a", 2), ("b", 2), ("a", 3), ("b", 3)] and len(rows) == 6
    assert described["found"] == {"a": {"first": 1}, "b": {"first": 1}}
    turns(tmp_path, capsys, cells, "--resume")
    assert len(ran) == 6  # nothing is left to run
    turns(tmp_path, capsys, cells)
    assert len(ran) == 12 and ran[6:] == ran[:6]


def test_what_was_measured_with_other_code_is_not_resumed(tmp_path, capsys):
    ran = []
    turns(tmp_path, capsys, [noted(ran, "a")], "--resume", "--until", "1")
    described = json.loads((tmp_path / "mine.json").read_text())
    (tmp_path / "mine.json").write_text(json.dumps({**described, "code": "other"}))
    turns(tmp_path, capsys, [noted(ran, "a")], "--resume", "--until", "1")
    assert ran == [("a", 1), ("a", 1)]


def test_nothing_is_published_before_the_last_round(tmp_path, capsys):
    words = ("--resume", "--publish", "models", "--published", str(tmp_path / "published"))
    turns(tmp_path, capsys, [noted([], "a")], *words, "--until", "2")
    assert not (tmp_path / "published").exists()
    turns(tmp_path, capsys, [noted([], "a")], *words)
    published = json.loads((tmp_path / "published" / "models" / "metadata.json").read_text())
    assert len(read(tmp_path / "published" / "models" / "data.csv")) == 3 and not {"done", "found"} & set(published)


def test_the_least_bound_of_the_rounds_holds_for_all():
    rows = [made("prophet", 160, 1, bound_ms=150.0), made("prophet", 156, 2, bound_ms=148.0), made("ddp-bf16", 150, 1, bound_ms=None)]
    assert [(row.bound_ms, row.time_over_bound) for row in same_bound(rows)][:2] == [(148.0, 1.0811), (148.0, None)]
    assert same_bound(rows)[2].bound_ms is None
