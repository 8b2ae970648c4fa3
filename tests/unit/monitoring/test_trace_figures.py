"""What is read from traces: right numbers, the jobs that they are of, and one line of error for what is no trace."""

import json
import math

import pytest

from prophet_mx import TraceError
from prophet_mx.errors import ConfigError
from prophet_mx.monitoring.trace import load_trace
from prophet_mx.monitoring.trace_figures import PARTS, busy_shares, figures
from prophet_mx.monitoring.trace_jobs import jobs, rank_of
from support.traces import made, straggling, written


def test_the_figures_of_a_trace_whose_times_are_known(tmp_path):
    found = figures(load_trace(str(written(tmp_path / "t.json", made()))))
    assert [iteration.number for iteration in found.iterations] == [0, 1, 2, 3]  # the last one has no end
    assert found.seconds == pytest.approx(0.1)
    assert {part: round(found.part(part), 6) for part in PARTS} == {
        "backward": 0.030,
        "stalled": 0.026,
        "arriving": 0.009,
        "compute": 0.035,
    }
    assert found.first_parameter == "first"
    assert {stage: round(found.first_wait(stage), 6) for stage in ("wait", "wire", "answer", "unpack", "total")} == {
        "wait": 0.005,
        "wire": 0.015,
        "answer": 0.005,
        "unpack": 0.001,
        "total": 0.026,
    }
    assert {iteration.ahead for iteration in found.iterations} == {4_000_000}
    assert found.utilisation == pytest.approx(0.5)
    assert [iteration.idle for iteration in found.iterations] == pytest.approx([0.04] * 4)
    assert [round(share, 6) for share in busy_shares(found.trace, found.median, 4)] == [1, 1, 0, 0]
    assert [(step.begin, step.units, step.bytes) for step in found.steps] == [
        (pytest.approx(0), 1, 4_000_000),
        (pytest.approx(0.03), 1, 1_000_000),
    ]


def test_what_the_server_has_and_has_not_answered_is_still_in_front_of_the_first_layer(tmp_path):
    """'second' has drained at 40 ms and is answered at 75; 'first' becomes ready at 45."""
    found = figures(load_trace(str(written(tmp_path / "t.json", made(late=15, own=15)))))
    assert {iteration.ahead for iteration in found.iterations} == {4_000_000}


def no_whole_iteration():
    return [event for event in made() if event["name"] != "iteration"]


def iterations_of_no_time():
    return [dict(event, dur=0) if event["name"] == "iteration" else event for event in made()]


WRONG = (10**400, -(10**400), math.nan, math.inf, -math.inf, 1e308, -5, True, "7", None, [1])  # numbers that no trace has
NUMBERS = [("wait", "ts"), ("wait", "dur"), ("wait", "tid"), ("wait", "step"), ("wait", "iteration")]
NUMBERS += [("step", "units"), ("step", "bytes"), ("thread_name", "unit"), ("thread_name", "bytes"), ("thread_name", "rank")]


def with_number(where, name, number):
    """A trace in which one number of one event of this name is another."""
    events = json.loads(json.dumps(made()))
    places = [facts for event in events if event["name"] == where for facts in (event, event["args"]) if name in facts]
    places[0][name] = number
    return json.dumps(events)


@pytest.mark.parametrize(
    "content, word",
    [
        ("", "not a complete JSON"),
        ("[", "not a complete JSON"),
        ("\0\1", "not a complete JSON"),
        ("[" * 100_000, "not a complete JSON"),
        ("[]", "not a trace of prophet_mx"),
        ("{}", "not a trace of prophet_mx"),
        ("3", "not a trace of prophet_mx"),
        ('{"traceEvents": []}', "not a trace of prophet_mx"),
        ('[{"ph": "X", "name": "other"}]', "not a trace of prophet_mx"),
        ('[{"name": "prophet_mx", "args": {"format": "prophet_mx timeline 9"}}]', "this version reads"),
        (json.dumps(made()).replace('"servers": 1', '"servers": "two"'), "it names 'two' servers; allowed: a whole number"),
        (made()[:1], "shows no units"),
        (no_whole_iteration(), "shows no whole iteration"),
        (iterations_of_no_time(), "take no time"),
        (made() + [{"ph": "X", "name": "wait"}], "damaged: event"),
        (made() + [3], "damaged: event"),
        (made() + [{"ph": "X", "name": "wait", "pid": 1, "tid": 1, "ts": -1, "dur": 1, "args": {"iteration": 1}}], "damaged: event"),
        (made() + [{"ph": "C", "name": "link 0", "pid": 1, "ts": 1, "args": {"rate": float("inf")}}], "damaged: event"),
        (json.dumps(made())[:-40], "not a complete JSON"),
        *(
            (with_number("prophet_mx", name, number), "allowed: a whole number")
            for name in ("servers", "workers", "rank")
            for number in WRONG
        ),
        *((with_number(at, name, number), "damaged: event") for at, name in NUMBERS for number in WRONG),
        *((made() + [{"ph": "C", "name": "link 0", "args": {"rate": number}}], "damaged: event") for number in WRONG),
    ],
)
def test_what_is_no_trace_is_one_line_and_code_2(tmp_path, content, word):
    with pytest.raises(TraceError) as caught:
        figures(load_trace(str(written(tmp_path / "t.json", content))))
    assert word in str(caught.value) and "t.json" in str(caught.value) and "\n" not in str(caught.value)


def jobs_of(*paths):
    return jobs([figures(load_trace(str(path))) for path in paths])


def traces(folder, *names, **facts):
    """Files of made traces, by name; a digit in the name is the rank."""
    return [written(folder / name, made(rank=int("".join(filter(str.isdigit, name)) or 0), **facts)) for name in names]


def test_the_workers_of_a_job_belong_together_and_those_of_another_do_not(tmp_path):
    fifo = traces(tmp_path, "fifo-0.json", "fifo-1.json", policy="fifo")
    prophet = traces(tmp_path, "prophet-0.json", "prophet-1.json", "prophet-12.json")
    found = jobs_of(*fifo, *prophet)
    assert [(job.name, [rank_of(worker) for worker in job.workers]) for job in found] == [
        ("fifo-*.json", ["worker 0", "worker 1"]),
        ("prophet-*.json", ["worker 0", "worker 1", "worker 12"]),
    ]


def test_the_same_rank_again_is_another_job_and_files_of_one_name_are_told_apart_by_their_folders(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    first, second = traces(tmp_path / "a", "t-0.json"), traces(tmp_path / "b", "t-0.json")
    assert [job.name for job in jobs_of(*first, *second)] == [str(first[0]), str(second[0])]
    with pytest.raises(ConfigError, match="traces of 3 jobs; allowed: those of one job, or of two"):
        jobs_of(*first, *second, *first)


def test_a_worker_that_the_others_wait_for_is_found(tmp_path):
    [job] = jobs_of(*straggling(tmp_path))
    assert [rank_of(worker) for worker in job.stragglers] == ["worker 1"] and job.slowest is job.workers[1]
    assert job.delay == pytest.approx(85 / 65)
    assert job.stalls == (pytest.approx(0.026), pytest.approx(0.046)) and job.seconds == pytest.approx(0.12)
    [slightly] = jobs_of(*straggling(tmp_path, late=5))  # 70 ms to 65: too little to be called slow
    assert slightly.stragglers == [] and slightly.delay == pytest.approx(70 / 65)
    [even] = jobs_of(*traces(tmp_path, "even-0.json", "even-1.json"))
    assert even.stragglers == [] and even.delay == pytest.approx(1)


def test_the_bound_is_that_of_the_sizes_times_and_rate_in_the_trace(tmp_path):
    """70 ms of compute: all but 26 of stall and the 4 until the last answer, for which the network may be to blame. 46.7 are backward, of
    which the last 30 are the first layer's, and 23.3 forward, 8.3 of them the second layer's. While the links were busy they carried
    100 MB/s. So the first layer's 1 MB is there at 56.7 ms, and its forward takes 15 ms."""
    [job] = jobs_of(*traces(tmp_path, "t-0.json"))
    assert job.bound == pytest.approx(0.0567 + 0.015 + 0.0083, abs=1e-4)
    rate = {"ph": "C", "name": "link 0", "pid": 0, "ts": 1000, "args": {"rate": 1e12}}
    [fast] = jobs_of(written(tmp_path / "fast.json", [*made(), rate]))
    assert fast.bound == pytest.approx(0.070, rel=1e-3)
    [slow] = jobs_of(written(tmp_path / "slow.json", [*made(), {**rate, "args": {"rate": 1e6}}]))
    assert slow.bound == slow.seconds  # what was measured is not beaten by what no schedule can beat


def test_with_two_servers_one_busy_link_is_half_of_what_there_is(tmp_path):
    events = made()
    events[0]["args"]["servers"] = 2
    found = figures(load_trace(str(written(tmp_path / "t.json", events))))
    assert found.utilisation == pytest.approx(0.25) and [round(share, 6) for share in busy_shares(found.trace, found.median, 2)] == [0.5, 0]
