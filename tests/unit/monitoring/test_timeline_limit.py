"""What a timeline writes when its file comes near its limit."""

import threading
from collections import Counter

import pytest

from prophet_mx.monitoring import timeline as timeline_module
from prophet_mx.monitoring.timeline import Timeline
from support.traces import load

UNIT = b',\n{"ph":"X","name":"answer","pid":1,"tid":%d,"ts":1,"dur":1,"args":{"iteration":%d}}'
ITERATION = b',\n{"ph":"X","name":"iteration","pid":1,"tid":1,"ts":1,"dur":1,"args":{"iteration":%d}}'
UNITS = 20


class Burst:
    """Source and recorder in one: many iterations between two writes, as where they are short or the machine is busy."""

    lost = 0

    def __init__(self, size, bursts):
        self.size, self.bursts, self.number = size, bursts, 0
        self.over = threading.Event()
        self.keep(1, 1)

    def keep(self, every, iterations_every):
        self.every, self.iterations_every = every, iterations_every

    def now_us(self):
        return 1

    def record_timeline(self, recorder):
        if recorder is None:
            self.over.set()

    def unit_facts(self, unit):
        return {"bytes": 1, "rank": unit}

    def drain_timeline(self, recorder, labels, last=False):
        if self.number == self.size * self.bursts:
            self.over.set()
            return b""
        events = []
        for number in range(self.number + 1, self.number + 1 + self.size):
            if number % self.every == 0:
                events += [UNIT % (unit + 1, number) for unit in range(UNITS)]
            if number % self.iterations_every == 0:
                events.append(ITERATION % number)
        self.number += self.size
        return b"".join(events)


def written(source, path, limit):
    """Iteration -> the units of it that are in the trace; and the iterations whose beginning is."""
    timeline = Timeline(
        source,
        lambda links, process: source,
        str(path),
        limit,
        rank=0,
        workers=2,
        links=["server"],
        gradients=list(range(UNITS)),
        names={unit: str(unit) for unit in range(UNITS)},
    )
    assert source.over.wait(30)
    timeline.stop()
    events = load(timeline.path)
    found = {name: Counter(e["args"]["iteration"] for e in events if e["name"] == name) for name in ("answer", "iteration")}
    return found["answer"], found["iteration"]


@pytest.fixture(autouse=True)
def quick_writes(monkeypatch):
    monkeypatch.setattr(timeline_module, "PERIOD", 0.001)


@pytest.mark.parametrize("size", (1, 8, 100, 1000))
def test_of_events_that_do_not_fit_the_iterations_are_written(tmp_path, size):
    limit = 1_000_000
    units, iterations = written(Burst(size, 2000 // size), tmp_path / "t.json", limit)
    assert set(iterations) == set(range(1, 2001)) and set(iterations.values()) == {1}
    assert list(units)[:100] == list(range(1, 101))  # the start as a whole, and samples of the rest
    assert any(number > 500 for number in units) and len(units) < 1000
    assert (tmp_path / "t-0.json").stat().st_size <= limit


def test_a_burst_of_iterations_alone_stays_under_the_limit(tmp_path):
    _, iterations = written(Burst(30_000, 3), tmp_path / "t.json", 1_000_000)
    assert (tmp_path / "t-0.json").stat().st_size <= 1_000_000
    assert 1000 < len(iterations) < 12_000
