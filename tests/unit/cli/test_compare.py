"""The command ``prophet-mx compare``: what it reads from jobs, and its verdict. The jobs are in tests/jobs/test_compare.py."""

import random
import sys

import pytest

from prophet_mx.cli import turns
from prophet_mx.cli.compare import TURNS, IterationTimes, is_pytorch, no_times, verdict
from prophet_mx.cli.main import main


def test_times_are_read_from_the_lines_of_workers_after_the_warm_up():
    times = IterationTimes(["worker 0", "worker 1"], warmup=20, iterations=30)
    lines = [(1, 11, 900.0), (11, 21, 80.0), (21, 31, 50.0), (31, 51, 56.0)]
    for label in ("worker 0", "server 0", "worker 1"):
        assert not times.enough()
        for first, last, ms in lines:
            times.sink(label, f"2026-01-01 prophet_mx INFO: iterations {first} to {last}: {ms:.1f} ms each, not scheduled", True)
    times.sink("worker 1", "iterations 51 to 61: 1.0 ms each", False)  # a line that is still being written
    assert times.enough() and times.last == 51 and times.seconds == pytest.approx(0.056)
    assert IterationTimes(["worker 0"], 20, 30).seconds == 0


def test_the_median_iteration_counts_and_ranks_that_share_an_output_count_once():
    times = IterationTimes(["worker 0"], warmup=0, iterations=50)
    for first, ms in enumerate((50.0, 51.0, 900.0, 50.0)):
        for rank in range(2):
            times.sink("worker 0", f"[rank{rank}]: iterations {10 * first} to {10 * first + 10}: {ms:.1f} ms each", True)
    assert times.seconds == pytest.approx(0.0505, abs=0.0006) and not times.enough()
    times.sink("worker 0", "iterations 40 to 50: 50.0 ms each", True)
    assert times.enough()


@pytest.mark.parametrize(
    "plain, scheduled, beginning",
    [
        (
            [0.2, 0.21, 0.19],
            [0.1, 0.11, 0.1],
            "Scheduling makes this job 1.94 times as fast (1.80 to 2.08 at 95%): an iteration takes 100.0 ms",
        ),
        (
            [0.1, 0.101],
            [0.12, 0.1212],
            "Scheduling makes this job 1.20 times as slow (1.20 to 1.20 at 95%): an iteration takes 120.6 ms with",
        ),
        ([0.2, 0.1, 0.2], [0.15, 0.15, 0.15], "No difference can be seen: an iteration takes 150.0 ms with prophet"),
        ([0.1, 0.1], [0.099, 0.099], "No difference that matters: an iteration takes 99.0 ms"),
    ],
)
def test_the_verdict_counts_only_what_all_turns_show(plain, scheduled, beginning):
    assert verdict(plain, scheduled, "prophet").startswith(beginning)


def verdicts(gain, noise, runs, draws=1000):
    """Shares of verdicts of so many turns, of jobs of which the scheduled one is faster by ``gain``, and all runs vary by ``noise``."""
    draw = random.Random(1)
    found = []
    for _ in range(draws):
        plain, scheduled = ([mean * draw.gauss(1, noise) for _ in range(runs)] for mean in (0.1, 0.1 / (1 + gain)))
        words = verdict(plain, scheduled, "prophet")
        found.append("fast" if "times as fast (" in words else "slow" if "times as slow" in words else "none")
    return {kind: found.count(kind) / draws for kind in ("fast", "slow", "none")}


@pytest.mark.parametrize("runs", [2, 3, TURNS])
def test_noise_is_called_a_difference_in_one_comparison_of_twenty_at_the_most(runs):
    assert verdicts(0.0, 0.05, runs)["none"] >= 0.945


def test_a_gain_of_a_tenth_is_seen_through_noise_of_a_twentieth_by_default():
    found = verdicts(0.1, 0.05, TURNS)
    assert found["fast"] >= 0.8 and found["slow"] == 0


def test_as_many_turns_as_it_says_show_the_difference():
    """Turns of 7% noise that show 10% by chance: with so many more, the same difference is mostly seen."""
    words = verdict([0.1, 0.121, 0.1, 0.121], [0.1, 0.1, 0.1, 0.1], "prophet")
    assert words.startswith("No difference can be seen: ") and "1.10 times, about 13 turns (--turns 13) would be needed" in words
    assert turns.difference([1.1, 1.09], [1.0, 1.02]).needed is not None
    assert "more than 100 turns would be needed" in verdict([0.1, 0.11, 0.09], [0.1, 0.09, 0.11001], "prophet")


def test_what_replaces_scipy_is_never_surer(monkeypatch):
    pytest.importorskip("scipy")
    exact = [turns.critical(freedom) for freedom in range(1, turns.MOST_TURNS)]
    monkeypatch.setitem(sys.modules, "scipy", None)
    turns.critical.cache_clear()
    own = [turns.critical(freedom) for freedom in range(1, turns.MOST_TURNS)]
    turns.critical.cache_clear()
    assert own[:9] == pytest.approx(exact[:9], abs=1e-3)
    assert all(value - 1e-3 <= other <= 1.03 * value for value, other in zip(exact, own))


def test_jobs_of_pytorch_are_known_by_their_launcher():
    for words in (
        ["torchrun", "train.py"],
        ["--", "/x/torchrun"],
        ["accelerate", "launch"],
        ["python", "-m", "torch.distributed.run", "a.py"],
    ):
        assert is_pytorch(words)
    assert not any(map(is_pytorch, ([], ["--"], ["python", "torchrun.py"], ["python", "-m", "torch.distributed"])))


@pytest.mark.parametrize(
    "words, parts",
    [
        (["--turns", "1", "--", "true"], ["'1' is not allowed", "2 to 100"]),
        (["-n", "3", "--pytorch", "--", "true"], ["--workers is not allowed for", "the job's own launcher"]),
        (["--policy", "fifo", "--pytorch", "--", "true"], ["--policy fifo is not allowed", "prophet"]),
        (["--", "/no/torchrun", "a.py"], ["'/no/torchrun' is not allowed"]),
        (["--pytorch"], ["-- torchrun train.py"]),
    ],
)
def test_wrong_arguments(words, parts, capsys):
    try:
        code = main(["compare", *words])
    except SystemExit as end:
        code = end.code
    said = capsys.readouterr().err
    assert code == 2 and all(part in said for part in parts), said


PYTORCH = """
import os, sys, time
assert os.environ["PROPHET_FALLBACK"] == "off" and "DMLC_ROLE" not in os.environ
each = {"off": 20.0, "prophet": 10.0}[os.environ["PROPHET_POLICY"]]
for first in range(1, 400, 10):
    for rank in range(2):
        print(f"iterations {first} to {first + 10}: {each + rank / 10:.2f} ms each", flush=True)
    time.sleep(0.001)
time.sleep(60)
"""


def test_a_command_that_starts_a_pytorch_job_runs_once_per_run(tmp_path, capfd):
    (tmp_path / "job.py").write_text(PYTORCH)
    options = ["--pytorch", "--turns", "2", "--iterations", "100", "--warmup", "20", "--quiet", "--grace", "1"]
    assert main(["compare", *options, "--", sys.executable, str(tmp_path / "job.py")]) == 0
    last = capfd.readouterr().out.splitlines()[-1]
    assert last.startswith(("Scheduling makes this job 1.99 times as fast", "Scheduling makes this job 2.00 times as fast")), last
    assert "with plain DistributedDataParallel" in last


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
