"""Cells, methods and rows of the comparison of all-reduces: what needs neither root nor PyTorch."""

import pytest

from benchmarks.collectives import _check_weights, main
from benchmarks.comparison.rings import RingCell, RingMethod, parse
from benchmarks.comparison.rows import MeasuredJob
from benchmarks.testbed.goodput import Goodput
from prophet_mx.errors import ConfigError
from prophet_mx.planning.bound import lower_bound, rho, ring_rate

LINKS = Goodput(118e6, 119e6, 0.005)


def test_a_cell_of_ranks_is_parsed_and_written_back():
    cell = RingCell.parse("resnet50_v1,ranks=4,rate=500Mbit,rho=1,compute=0.15,slow=1.3", "device")
    assert (cell.ranks, cell.cell.rate) == (4, 62.5e6)
    assert RingCell.parse(str(cell), "device") == cell and "ranks=4" in str(cell) and "servers" not in str(cell)


@pytest.mark.parametrize("ranks", [2, 4])
def test_rho_counts_every_byte_as_often_as_a_ring_sends_it(ranks):
    load = RingCell.parse(f"resnet50_v1,ranks={ranks},rho=0.5,compute=0.15", "cpu").load(LINKS.link)
    assert rho(load.profile, LINKS.link * ranks / (2 * (ranks - 1))) == pytest.approx(0.5, rel=1e-3)
    assert load.bound == lower_bound(load.profile, ring_rate(LINKS.link, ranks))


def test_gradients_are_ready_operation_by_operation_and_a_slower_rank_has_a_bound_of_its_own():
    load = RingCell.parse("resnet50_v1,ranks=2,rho=1,compute=0.15", "cpu").load(LINKS.link)
    slow = RingCell.parse("resnet50_v1,ranks=2,rho=1,compute=0.15,slow=2", "cpu").load(LINKS.link)
    assert len(set(load.profile.backward_ready_times())) > 100 and load.profile.compute_seconds == pytest.approx(0.15)
    assert load.bound < 0.152 and slow.bound == pytest.approx(0.3, rel=0.01) and slow.profile == load.profile


def test_gradients_may_be_ready_in_the_steps_of_the_profile():
    text = "resnet50_v1,ranks=2,rho=1,compute=0.15,rate=1Gbit,ready=steps"
    cell = RingCell.parse(text, "device")
    assert str(cell) == text
    assert len(set(cell.load(LINKS.link).profile.backward_ready_times())) == 16


def test_methods_say_what_ranks_do():
    assert parse("ddp") == RingMethod("ddp", False, None, False, {})
    assert parse("ddp-bf16-4MB") == RingMethod("ddp-bf16-4MB", False, 4_000_000, True, {})
    assert parse("scheduled-bf16") == RingMethod("scheduled-bf16", True, None, True, {"PROPHET_COMPRESS": "bf16"})
    assert parse("scheduled:PROPHET_UNIT=1MB:PROPHET_WARMUP=3")[1:] == (
        True,
        None,
        False,
        {"PROPHET_UNIT": "1MB", "PROPHET_WARMUP": "3"},
        False,
    )
    assert parse("ddp-clip-4MB") == RingMethod("ddp-clip-4MB", False, 4_000_000, False, {}, True)
    assert parse("scheduled-clip") == RingMethod("scheduled-clip", True, None, False, {}, True)


@pytest.mark.parametrize("text", ["dpp", "ddp-4", "ddp-4MB-bf16", "scheduled-4MB", "scheduled:PROPHET_UNIT"])
def test_methods_that_do_not_exist_are_refused(text):
    with pytest.raises(ConfigError):
        parse(text)


def job(*seconds, weights="same"):
    """A job of two ranks with iterations of these lengths after one of warm-up."""
    starts = [0.0, 5.0]
    for time in seconds:
        starts.append(starts[-1] + time)
    rank = {"starts": starts, "call_seconds": [0.01] * len(starts), "cpu_seconds": 1, "wall_seconds": 10, "memory_bytes": 10**8}
    return MeasuredJob([{**rank, "wrong": 0, "weights": weights} for _ in range(2)])


def test_a_rank_that_ends_with_other_weights_is_a_wrong_value():
    jobs = {"ddp": [job(0.4)], "ddp-1MB": [job(0.4)], "ddp-bf16": [job(0.4, weights="rounded")], "scheduled": [job(0.4, weights="other")]}
    _check_weights(jobs)
    assert {name: [rank["wrong"] for rank in ran[0].workers] for name, ran in jobs.items()} == {
        "ddp": [0, 0],
        "ddp-1MB": [0, 0],
        "ddp-bf16": [0, 0],
        "scheduled": [1, 1],
    }


def test_wrong_arguments_are_refused(capsys):
    for arguments in (["--cell", "x", "--kinds", "gpu"], ["--cell", "x", "--methods", "dpp"], []):
        with pytest.raises(SystemExit):
            main(arguments)
    assert main(["--cell", "no_such_profile,speed=1"]) == 1
