"""The fuzzer of whole programs (tests/programs): it draws what plain dist_sync can run, and says what differs. No job runs here."""

import numpy as np
import pytest

from programs import compare
from programs.generator import DIMENSIONS, Call, drawn, without_locks

SEEDS = range(150)
PROGRAMS = [drawn(seed) for seed in SEEDS]
PUSHES = ("push", "pushpull", "in_place")


def test_a_seed_always_gives_the_same_program_and_all_dimensions_are_drawn():
    assert [drawn(seed) for seed in SEEDS] == PROGRAMS
    assert {name for program in PROGRAMS for name in program.dimensions} == set(DIMENSIONS)
    assert {program.workers for program in PROGRAMS} == {2, 3} and {program.servers for program in PROGRAMS} == {1, 2}


def test_dimensions_can_be_left_out_and_the_rest_of_the_program_stays():
    for seed, program in enumerate(PROGRAMS):
        without = drawn(seed, ["waits", "texts", "policies"])
        assert set(without.dimensions).isdisjoint(("waits", "texts", "policies"))
        assert [key.shape for key in without.keys] == [key.shape for key in program.keys] or program.has("numpy")
        assert len(without.iterations) == len(program.iterations)
        assert drawn(seed, only=["servers"]).dimensions in ((), ("servers",))
        assert drawn(seed, only=(), always=program.dimensions) == program
        assert drawn(seed, iterations=2).iterations == program.iterations[:2]


def test_in_each_iteration_all_workers_push_the_same_keys_once_and_in_the_same_way():
    for program in PROGRAMS:
        for number, iteration in enumerate(program.iterations):
            ways = []
            for calls in iteration.calls:
                pushed = [(place, call.what) for call in calls if call.what in PUSHES for place in sorted(set(call.keys))]
                assert len(pushed) == len(dict(pushed))
                ways.append(sorted(pushed))
            assert all(way == ways[0] for way in ways)
            assert all(program.keys[place].late <= number for place, _ in ways[0])


def test_every_key_is_made_once_by_all_workers_text_keys_in_one_order():
    for program in PROGRAMS:
        by_worker = [
            [place for iteration in program.iterations for making in iteration.makings for call in making.calls[rank] for place in call]
            for rank in range(program.workers)
        ]
        assert all(sorted(made) == list(range(len(program.keys))) for made in by_worker)
        if program.has("texts"):
            assert all(made == by_worker[0] for made in by_worker)


def blocked(workers):
    """Plays an iteration one call at a time: the workers that wait for ever."""
    at, pushed = [0] * len(workers), [set() for _ in workers]
    while True:
        before = list(at)
        for rank, calls in enumerate(workers):
            if at[rank] == len(calls):
                continue
            call = calls[at[rank]]
            awaited = pushed[rank] & set(call.keys) if call.what == "look" else pushed[rank] if call.what == "fork" else set()
            if all(awaited <= others for others in pushed):
                at[rank] += 1
                pushed[rank].update(call.keys if call.what in PUSHES else ())
        if at == before:
            return [rank for rank, calls in enumerate(workers) if at[rank] < len(calls)]


def test_no_program_locks_itself():
    iterations = [iteration for program in PROGRAMS for iteration in program.iterations]
    assert not [iteration for iteration in iterations if blocked(iteration.calls)]
    assert any(call.what == "look" for iteration in iterations for call in iteration.calls[0][:-1])


def test_only_the_looks_that_lock_are_taken_out():
    push = [Call("pushpull", (place,)) for place in range(2)]
    look = [Call("look", (place,)) for place in range(2)]
    one, other = [push[0], look[0], push[1]], [push[1], look[1], push[0]]
    assert blocked([one, other]) == [0, 1]
    kept = without_locks([one, other])
    assert not blocked(kept) and sum(map(len, kept)) == 5
    assert without_locks([one, one]) == [one, one]


def test_it_sees_a_difference_of_one_bit_and_a_missing_value():
    plain = [[("end", 0, [np.ones(3)])], [("end", 0, [np.zeros(3)])]]
    assert compare.differences(plain, plain) == []
    minus = [plain[0], [("end", 0, [-np.zeros(3)])]]  # equal numbers, other bits
    assert len(compare.differences(plain, minus)) == 1
    assert "rank 0" in compare.differences(plain, [[], plain[1]])[0]


def test_what_fails_is_printed_by_its_seed_and_made_smaller(monkeypatch, capsys):
    """With a store that is wrong about lists from the third iteration on."""

    def failure(program):
        return compare.Failure("different", "the logs") if program.has("lists") and len(program.iterations) > 2 else None

    monkeypatch.setattr(compare, "failure", failure)
    seed = next(program.seed for program in PROGRAMS if program.has("lists") and program.has("waits"))
    assert compare.main(["--first", str(seed), "--seeds", "1", "--shrink"]) == 1
    found, smaller = capsys.readouterr().out.split("SHRUNK")
    assert f"seed {seed}:" in found and "the logs" in found and drawn(seed).text() in found
    assert "dimensions: lists\n" in smaller and "iteration 2" in smaller and "iteration 3" not in smaller
    assert compare.main(["--first", str(seed), "--seeds", "1", "--without", "lists"]) == 0


@pytest.mark.parametrize("arguments", [["--seeds", "0"], ["--without", "nonsense"]])
def test_wrong_arguments(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        compare.main(arguments)
    assert ended.value.code == 2 and "--" in capsys.readouterr().err
