"""What a timeline of collectives tells, with times that are given."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_mx.monitoring import rounds as rounds_module
from prophet_mx.monitoring.rounds import RoundCounters, RoundRecorder, UnitFacts
from prophet_mx.monitoring.timeline import Timeline
from prophet_mx.monitoring.trace import load_trace
from prophet_mx.monitoring.trace_figures import figures

LABELS = [b'"a"', b'"b[0]"', b'"b[1]"']
FACTS = [UnitFacts((0,), 100, 0, 1), UnitFacts((1,), 400, 1, 0), UnitFacts((1, 2), 300, 1, 0)]
SPAN = 0.1  # seconds of a round below


def told(recorder, last=False):
    text = recorder.text(FACTS, LABELS, 1e6, last)
    return json.loads("[" + text.decode("ascii")[1:] + "]")


def land(recorder, number, origin):
    """A round as it might go: b's second part first, then both others, in the order of their turn."""
    begin = origin + SPAN * number
    for unit, ready, started, landed in ((2, 0.0, 0.001, 0.02), (0, 0.03, 0.031, 0.04), (1, 0.01, 0.032, 0.06)):
        recorder.landed((unit, begin + ready, begin + started, begin + landed))
    recorder.round_ends(number, 3)


def slices(events, name, row=None):
    return [event for event in events if event.get("name") == name and (row is None or event["tid"] == row)]


def test_a_round_is_told_when_the_next_one_is_over():
    recorder = RoundRecorder(1)
    origin = recorder._origin
    land(recorder, 0, origin)
    assert recorder.text(FACTS, LABELS, 1e6, False) == b""
    for parameter, when in ((0, 0.05), (1, 0.07), (2, 0.025)):
        recorder.updated(0, parameter, origin + when)
    land(recorder, 1, origin)
    events = told(recorder)
    assert {event["args"]["iteration"] for event in events if event["ph"] == "X"} == {0}
    [iteration] = slices(events, "iteration")
    assert (iteration["ts"], iteration["dur"]) == (0, 100_000)
    # In the row of the link one unit follows the other: b's first part was started while it still carried a.
    assert [(name, *[(e["ts"], e["dur"]) for e in slices(events, name, 10)]) for name in ("b[1]", "a", "b[0]")] == [
        ("b[1]", (1000, 19_000)),
        ("a", (31_000, 9000)),
        ("b[0]", (40_000, 20_000)),
    ]
    assert [(e["tid"], e["ts"], e["dur"]) for e in slices(events, "wait")] == [(3, 0, 1000), (1, 30_000, 1000), (2, 10_000, 22_000)]
    assert [(e["tid"], e["ts"] + e["dur"]) for e in slices(events, "unpack")] == [(3, 70_000), (1, 50_000), (2, 70_000)]
    assert [(e["args"]["step"], e["ts"], e["dur"], e["args"]["bytes"]) for e in slices(events, "step")] == [
        (0, 0, 10_000, 700),
        (1, 30_000, 0, 100),
    ]
    assert slices(events, "compute gap") == []
    flight = [event["args"]["in flight"] for event in events if event["ph"] == "C"]
    assert flight == [300, 0, 100, 500, 400, 0]

    rest = told(recorder, last=True)
    assert slices(rest, "iteration") == []  # it has no end
    [gap] = slices(rest, "compute gap")
    assert (gap["ts"], gap["dur"]) == (60_000, 40_000)


def test_a_round_that_it_has_not_seen_as_a_whole_is_left_out():
    recorder = RoundRecorder(1)
    recorder.landed((0, 1.0, 1.0, 1.0))
    recorder.round_ends(4, 3)
    assert recorder.text(FACTS, LABELS, 1e6, True) == b"" and recorder.lost == 0


def test_what_nobody_asks_for_is_lost_and_counted(monkeypatch):
    monkeypatch.setattr("prophet_mx.monitoring.rounds.CAPACITY", 6)
    recorder = RoundRecorder(1)
    for number in range(5):
        land(recorder, number, recorder._origin)
    assert recorder.lost == 6
    assert [event["args"]["iteration"] for event in slices(told(recorder, last=True), "iteration")] == [0, 1]


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 12), st.integers(1, 4))
def test_one_in_so_many_rounds_is_told_whole(every, iterations_every, count, at_once):
    recorder = RoundRecorder(1)
    recorder.keep(every, iterations_every)
    events = []
    for number in range(count):
        land(recorder, number, recorder._origin)
        if number % at_once == 0:
            text = recorder.text(FACTS, LABELS, 1e6, False).decode("ascii")
            events += json.loads("[" + text[1:] + "]")
    events += told(recorder, last=True) if count else []
    whole = [event["args"]["iteration"] for event in slices(events, "wait", 1)]
    assert whole == [number for number in range(count) if number % every == 0]
    assert [event["args"]["iteration"] for event in slices(events, "iteration")] == [
        number for number in range(count - 1) if number % iterations_every == 0
    ]


class Clock:
    """A time that is set."""

    now = 100.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(rounds_module, "time", found)
    monkeypatch.setattr("prophet_mx.monitoring.rounds.time", found)
    return found


def passes(traffic, clock, begin):
    """A round of two units: the second is ready first and takes 40 ms, the first has to wait for it and takes 10."""
    for when, what, unit in (
        (0.0, traffic.ready, 1),
        (0.0, traffic.started, 1),
        (0.03, traffic.ready, 0),
        (0.04, traffic.landed, 1),
        (0.04, traffic.started, 0),
        (0.05, traffic.landed, 0),
    ):
        clock.now = begin + when
        what(unit)


def test_counters(clock):
    traffic = RoundCounters(["a", "b", "answers"])
    traffic.plan([UnitFacts((0,), 1000, 0, 1), UnitFacts((1,), 4000, 1, 0)], 1e5)
    for number in range(3):
        passes(traffic, clock, 100 + 0.1 * number)
    state = traffic.snapshot()
    [link] = state.pop("links")
    assert state == pytest.approx(
        {"units": 6, "bytes": 15_000, "wait_seconds": 0.03, "first_seconds": 0.06, "first_answers": 3, "first_ahead": 12_000}
    )
    assert link == pytest.approx({"rate": 1e5, "backlog_seconds": 0.15, "backlog_bytes": 15_000})


def test_a_link_has_something_to_send_from_when_a_unit_is_ready_until_all_have_landed(clock):
    """Also while the unit waits for its turn, behind one that is not ready: so the link was not used all the time."""
    traffic = RoundCounters(["a", "b"])
    traffic.plan([UnitFacts((0,), 1000, 0, 1), UnitFacts((1,), 4000, 1, 0)], 1e5)
    for when, what, unit in (
        (0.0, traffic.ready, 1),
        (0.03, traffic.ready, 0),
        (0.03, traffic.started, 0),
        (0.04, traffic.landed, 0),
        (0.04, traffic.started, 1),
        (0.08, traffic.landed, 1),
        (0.10, traffic.ready, 1),
        (0.12, traffic.started, 1),
        (0.13, traffic.landed, 1),
    ):
        clock.now = 100 + when
        what(unit)
    assert traffic.snapshot()["links"][0]["backlog_seconds"] == pytest.approx(0.01 + 0.04 + 0.03)


def test_a_trace_goes_on_over_another_plan(clock, tmp_path):
    """The units of each plan have rows of their own, and the figures are those of the times."""
    traffic = RoundCounters(["a", "b", "answers"])
    traffic.plan([UnitFacts((0,), 1000, 0, -1), UnitFacts((1,), 4000, 1, -1)], 0.0)
    timeline = Timeline(
        traffic,
        lambda links, process: RoundRecorder(process),
        str(tmp_path / "trace.json"),
        10**6,
        rank=0,
        workers=2,
        links=["all-reduce"],
        gradients=traffic.gradients,
        names=traffic.labels,
    )
    for number in range(3):
        passes(traffic, clock, 100 + 0.1 * number)
    traffic.plan([UnitFacts((0, 1), 2500, 0, 1), UnitFacts((1,), 2500, 1, 0)], 1e5)
    for number in range(3, 9):
        passes(traffic, clock, 100 + 0.1 * number)
    timeline.stop()
    trace = load_trace(timeline.path)
    assert {unit: (facts.name, facts.bytes) for unit, facts in trace.units.items()} == {
        0: ("a", 1000),
        1: ("b", 4000),
        2: ("a", 2500),
        3: ("b", 2500),
    }
    found = figures(trace)
    assert [iteration.number for iteration in found.iterations] == [3, 4, 5, 6, 7]  # those in which the steps are known
    assert found.seconds == pytest.approx(0.1) and found.rate == 1e5
    assert found.first_wait("wait") == pytest.approx(0.01) and found.first_wait("wire") == pytest.approx(0.01)
    assert found.part("stalled") == pytest.approx(0.02) and found.part("compute") == pytest.approx(0.05)
    assert found.utilisation == pytest.approx(0.5) and found.iterations[0].ahead == 2500
    assert [(step.units, step.bytes) for step in found.steps] == [(1, 2500), (1, 2500)]
