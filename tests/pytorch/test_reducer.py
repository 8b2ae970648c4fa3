"""The reducer's two threads, by a strategy that reduces nothing: what is started when, and what is told."""

import threading
import time

import pytest
import torch

from prophet_mx.torch.reducer import Reducer

UNITS = 6


class Idle:
    """A strategy that notes what it is asked for. What it starts ends when :attr:`may_end` is set."""

    scale = share = 1.0

    def __init__(self):
        self.log, self.may_end, self.error = [], threading.Event(), None

    def itemsize(self, dtype):
        return dtype.itemsize

    def start(self, unit):
        if self.error is not None:
            raise self.error
        self.log.append(("start", int(unit[0]), threading.current_thread().name))
        return int(unit[0])

    def finish(self, unit, work):
        self.may_end.wait(10)
        assert int(unit[0]) == work
        self.log.append(("finish", work, threading.current_thread().name))


class Nobody:
    """Who is told of units, and does nothing about it."""

    def ready(self, unit):
        pass

    started = landed = ready


class Case:
    """A reducer of some units, and all that it says."""

    def __init__(self, order, outstanding=2):
        self.strategy, self.landed, self.failures = Idle(), [], []
        self.done = threading.Semaphore(0)
        units = [torch.full((1,), float(unit)) for unit in range(UNITS)]
        self.reducer = Reducer([self.strategy] * UNITS, units, order, Nobody(), self.land, self.fail, outstanding)

    def land(self, unit):
        self.landed.append(unit)
        self.done.release()

    def fail(self, error):
        self.failures.append(error)
        self.done.release()

    def wait(self, count=1):
        assert all(self.done.acquire(timeout=10) for _ in range(count))


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5], [3, 5, 0, 4, 1, 2]])
def test_units_start_in_one_order_whatever_the_order_in_which_they_become_ready(order):
    case = Case(order)
    case.strategy.may_end.set()
    for unit in range(UNITS):
        case.reducer.ready(unit)
    case.wait(UNITS)
    assert case.reducer.stop(10)
    started = [(unit, thread) for what, unit, thread in case.strategy.log if what == "start"]
    finished = [(unit, thread) for what, unit, thread in case.strategy.log if what == "finish"]
    assert case.landed == order and started == [(unit, "prophet_mx-reduce") for unit in order]
    assert finished == [(unit, "prophet_mx-land") for unit in order]


def test_no_more_are_under_way_than_allowed():
    case = Case(list(range(UNITS)), outstanding=2)
    for unit in range(UNITS):
        case.reducer.ready(unit)
    assert not case.reducer.stop(0.2)  # it waits for what is under way
    assert [what for what, _, _ in case.strategy.log] == ["start"] * 2
    case.strategy.may_end.set()
    case.wait(UNITS)
    assert case.reducer.stop(10) and case.landed == list(range(UNITS))


def test_a_strategy_that_fails_ends_both_threads():
    case = Case(list(range(UNITS)))
    case.strategy.error = RuntimeError("no such rank")
    case.reducer.ready(0)
    case.wait()
    assert case.failures == [case.strategy.error] and case.reducer.stop(10) and case.landed == []


def test_it_stops_although_nothing_of_what_is_ready_has_been_started_yet():
    case = Case(list(range(UNITS)), outstanding=0)
    case.strategy.may_end.set()
    for unit in range(UNITS):
        case.reducer.ready(unit)
    later = threading.Timer(0.1, lambda: case.reducer._places.put(None))
    later.start()
    assert case.reducer.stop(10) and case.landed == list(range(UNITS))
    later.join()


def test_the_observed_rate_is_that_since_it_was_asked_for_last():
    """So that a network which has become slower is seen."""
    case = Case(list(range(UNITS)), outstanding=1)
    case.strategy.may_end.set()
    finish, took = case.strategy.finish, []

    def slow(unit, work):
        began = time.perf_counter()
        time.sleep(0.02)
        finish(unit, work)
        took.append(time.perf_counter() - began)

    case.strategy.finish = slow
    for _ in range(3):
        for unit in range(UNITS):
            case.reducer.ready(unit)
        case.wait(UNITS)
    assert 0 < case.reducer.observed_rate() <= 4 / min(took)  # units of 4 bytes
    assert case.reducer.observed_rate() is None  # nothing since
    assert case.reducer.stop(10)
