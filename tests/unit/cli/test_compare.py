"""The command ``prophet-mx compare``: what it reads from jobs, and its verdict. The jobs are in tests/jobs/test_compare.py."""

import pytest

from prophet_mx.cli.compare import IterationTimes, no_times, verdict


def test_times_are_read_from_the_lines_of_workers_after_the_warm_up():
    times = IterationTimes(["worker 0", "worker 1"], warmup=20, iterations=30)
    lines = [(1, 11, 900.0), (11, 21, 80.0), (21, 31, 50.0), (31, 51, 56.0)]
    for label in ("worker 0", "server 0", "worker 1"):
        assert not times.enough()
        for first, last, ms in lines:
            times.sink(label, f"2026-01-01 prophet_mx INFO: iterations {first} to {last}: {ms:.1f} ms each, not scheduled", True)
    times.sink("worker 1", "iterations 51 to 61: 1.0 ms each", False)  # a line that is still being written
    assert times.enough() and times.last == 51 and times.seconds == pytest.approx(0.054)
    assert IterationTimes(["worker 0"], 20, 30).seconds == 0


@pytest.mark.parametrize(
    "plain, scheduled, beginning",
    [
        (
            [0.2, 0.21, 0.19],
            [0.1, 0.11, 0.1],
            "Scheduling makes this job 2.00 times as fast: an iteration takes 100.0 ms with prophet (100.0",
        ),
        ([0.1], [0.12], "Scheduling makes this job 1.20 times as slow: an iteration takes 120.0 ms with prophet (120.0 ms)"),
        ([0.2, 0.1, 0.2], [0.15, 0.15, 0.15], "No difference can be told: an iteration takes 150.0 ms with prophet"),
        ([0.1, 0.1], [0.099, 0.099], "No difference can be told"),
    ],
)
def test_the_verdict_counts_only_what_all_turns_agree_on(plain, scheduled, beginning):
    assert verdict(plain, scheduled, "prophet").startswith(beginning)


@pytest.mark.parametrize(
    "lines, words",
    [
        ([], "its log has no times of iterations: the script must make a dist_sync store, and wrap it in ScheduledKVStore; --schedule"),
        (
            ["iterations 1 to 11: 9.0 ms each"],
            "after about 11 iterations, but times count from iteration 30 on: train for longer, or set a",
        ),
    ],
)
def test_a_run_without_times_is_told_why_and_what_to_do(lines, words):
    times = IterationTimes(["worker 0"], warmup=20, iterations=30)
    for text in lines:
        times.sink("worker 0", text, True)
    assert times.seconds == 0 and words in no_times(times, 20)
