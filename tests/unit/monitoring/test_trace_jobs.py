"""What is left to gain in a job: never more than its workers stall or may wait for the network."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prophet_mx.monitoring.report_page import opening
from prophet_mx.monitoring.trace import load_trace
from prophet_mx.monitoring.trace_figures import figures
from prophet_mx.monitoring.trace_jobs import jobs
from support.traces import drawn, written

FAST = 1e9  # bytes/s


def job_of(folder, *traces):
    [job] = jobs([figures(load_trace(str(written(folder / f"t-{rank}.json", events)))) for rank, events in enumerate(traces)])
    return job


def late(rank, ready):
    """The first layer's values come at 17 ms, 5 ms after the last gradient, and forward begins. The last layer's gradient is made at
    ``ready``, its bytes take 5 ms, and its values come at 47 ms of 48.6."""
    between = (4, 0, 0, 1, 3, 4)
    return drawn([(1_000_000, 12, 12, 13, 16, 17), between, (4_000_000, ready, ready, ready + 5, 46, 47)], 48.6, rank=rank, rate=FAST)


@pytest.mark.parametrize("ready, gain", [(0, 0.005), (40, 0.006)])
def test_values_that_are_late_while_nobody_sends_are_nothing_that_another_order_gains(tmp_path, ready, gain):
    """The stall is 5 ms, and no more can be gained; or, if worker 1 makes the last layer's gradient at 40 ms, the 6 ms of sending it."""
    job = job_of(tmp_path, late(0, 0), late(1, ready))
    assert job.seconds == pytest.approx(0.0486) and job.stalls[1] == pytest.approx(0.005)
    assert job.seconds - job.bound <= gain + 1e-9
    assert job.gain == pytest.approx(job.seconds - job.bound)


def test_what_any_worker_sends_while_values_arrive_may_be_hidden(tmp_path):
    """The other worker's link takes until 45 ms: forward may have waited for that. Its clock began 7 s earlier."""
    slow = drawn([(1_000_000, 12, 12, 13, 16, 17), (4, 0, 0, 1, 3, 4), (4_000_000, 0, 14, 45, 46, 47)], 48.6, rank=1, rate=FAST, clock=7000)
    job = job_of(tmp_path, late(0, 0), slow)
    assert [job.waiting(worker) for worker in job.workers] == [pytest.approx(0.029, abs=1e-6)] * 2  # 17 to 46 ms, with its answer
    assert 0.005 < job.gain <= 0.034 + 1e-9
    [said] = opening([job])
    assert "in which forward may wait for later values" in said


def test_without_the_other_workers_traces_an_answer_may_be_the_networks(tmp_path):
    job = job_of(tmp_path, late(0, 0))
    assert job.waiting(job.workers[0]) == pytest.approx(0.029, abs=1e-6)


def test_what_is_computed_is_also_told_by_the_job_before(tmp_path):
    """Before, all values came at once, and a worker computed for 90 ms. After, the network was at work while they arrived."""
    before = drawn([(1_000_000, 30, 70, 80, 90, 90), (4_000_000, 0, 30, 70, 90, 90)], 150, rate=1e8, workers=1)
    after = drawn([(1_000_000, 30, 30, 40, 45, 45), (4_000_000, 0, 40, 90, 100, 100)], 110, rate=1e8, workers=1)
    after[0]["args"]["policy"] = "fifo"
    paths = [written(tmp_path / f"{number}.json", events) for number, events in enumerate((before, after))]
    [alone] = jobs([figures(load_trace(str(paths[1])))])
    _, compared = jobs([figures(load_trace(str(path))) for path in paths])
    assert 0.045 < alone.gain <= 0.015 + 0.055
    assert compared.computing == pytest.approx(0.090) and compared.gain <= 0.110 - 0.090 + 1e-9


@st.composite
def times(draw):
    """Times in ms of a unit's passage, each at or after the one before."""
    steps = [draw(st.integers(0, 40)) for _ in range(5)]
    return [sum(steps[: place + 1]) for place in range(5)]


@st.composite
def job_traces(draw):
    """Traces of some of a job's workers, whose units are ready, sent and answered at any time, whose clocks differ, and whose rates need
    not be true. Answers come to all at once, which is how clocks are compared."""
    workers, units = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    sizes = [draw(st.integers(1, 4_000_000)) for _ in range(units)]
    passages = [[draw(times()) for _ in range(units)] for _ in range(workers)]
    answers = [max(own[unit][3] for own in passages) for unit in range(units)]
    end = max(answers) + 41 + draw(st.integers(0, 100))
    traces = []
    for rank, own in enumerate(passages):
        first = min(ready for ready, *_ in own)
        rows = [(size, *(t - first for t in (*o[:3], a, a + o[4] - o[3]))) for size, o, a in zip(sizes, own, answers)]
        rate = draw(st.sampled_from([0.0, 1e6, 1e8, 1e12]))
        traces.append(drawn(rows, end - first, iterations=4, rank=rank, clock=first + draw(st.integers(0, 1000)), workers=3, rate=rate))
    return traces[: draw(st.integers(1, workers))] if draw(st.booleans()) else traces


@settings(max_examples=60)
@given(job_traces())
def test_the_gain_is_part_of_the_stall_and_of_waits_for_the_network(traces):
    with tempfile.TemporaryDirectory() as folder:
        job = job_of(Path(folder), *traces)
    assert job.bound == pytest.approx(job.seconds - job.gain) and 0 <= job.gain < job.seconds
    for worker in job.workers:
        assert sum(worker.part(part) for part in ("backward", "stalled", "arriving", "compute")) == pytest.approx(worker.seconds)
        assert -1e-9 <= job.waiting(worker) <= worker.part("arriving") + 1e-9
        assert job.gain <= worker.part("stalled") + job.waiting(worker) + 1e-9


def test_one_long_pause_makes_no_straggler_and_a_jobs_figures_are_of_the_same_iterations(tmp_path):
    """Worker 1 once computes for a second; the iteration that it ends is longer there, and the next one on worker 0."""
    units = [(1000, 20, 20, 25, 30, 31), (2000, 0, 0, 5, 8, 9)]
    quiet, paused = drawn(units, 100, iterations=12), drawn(units, 100, iterations=12, rank=1)
    for events, number in ((paused, 2), (quiet, 3)):
        for event in events:
            if event["ph"] == "X" and event["args"]["iteration"] == number and event["name"] == "iteration":
                event["dur"] += 1_000_000
    job = job_of(tmp_path, quiet, paused)
    assert job.stragglers == [] and [worker.seconds for worker in job.workers] == [pytest.approx(0.1)] * 2
    assert [iteration.number for iteration in job.workers[0].usual] == [iteration.number for iteration in job.workers[1].usual]
    assert [iteration.number for iteration in job.together] == [job.together[0].number] * 2
