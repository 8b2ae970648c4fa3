"""Traces of one job on one clock: what answers say about the workers' clocks."""

import random

import pytest

from prophet_mx.monitoring.clocks import common_clock
from prophet_mx.monitoring.trace import load_trace
from support.traces import drawn, written

UNITS = [(1000, 20, 20, 25, 30, 31), (2000, 0, 0, 5, 8, 9)]


def load(folder, *traces):
    return [load_trace(str(written(folder / f"t-{rank}.json", events))) for rank, events in enumerate(traces)]


def test_a_clock_that_began_earlier_is_put_back(tmp_path):
    traces = load(tmp_path, drawn(UNITS, 100), drawn(UNITS, 100, rank=1, clock=1234.5))
    found = common_clock(traces)
    assert [clock.shift for clock in found.each] == [0, pytest.approx(-1.2345)] and found.accuracy == pytest.approx(0, abs=1e-9)
    begin = traces[1].iterations[2][0]
    assert found.each[1].common(begin) == pytest.approx(traces[0].iterations[2][0])


def test_replies_that_take_unequally_long_are_told_as_the_accuracy_and_some_late_ones_bend_nothing(tmp_path):
    traces = load(tmp_path, drawn(UNITS, 100, iterations=100), drawn(UNITS, 100, rank=1, clock=500, iterations=100))
    draw = random.Random(1)
    for number, passages in traces[1].passages.items():
        for passage in passages.values():
            passage.answered += draw.uniform(-0.002, 0.002) + (3.0 if number % 10 == 0 else 0.0)
    found = common_clock(traces)
    assert found.each[1].shift == pytest.approx(-0.5, abs=0.001) and 0.0005 < found.accuracy < 0.0025


def test_a_clock_that_runs_fast_is_slowed_down(tmp_path):
    """By 50 us per second over an hour, that is 180 ms."""
    traces = load(tmp_path, drawn(UNITS, 36_000, iterations=100), drawn(UNITS, 36_000, rank=1, iterations=100))
    for passages in traces[1].passages.values():
        for passage in passages.values():
            passage.answered *= 1.00005
    found = common_clock(traces)
    assert found.each[1].drift == pytest.approx(-50e-6, rel=0.01) and found.accuracy < 1e-5


def test_traces_without_a_common_answer_have_no_common_clock(tmp_path):
    early, late = load(tmp_path, drawn(UNITS, 100), drawn(UNITS, 100, rank=1))
    late.passages = {number + 1000: passages for number, passages in late.passages.items()}
    assert common_clock([early, late]) is None and common_clock([]) is None
    assert common_clock([early]).each[0].common(7.0) == 7.0
