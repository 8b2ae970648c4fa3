"""What is read from a trace: right numbers, and one line of error for what is no trace."""

import json

import pytest

from prophet_mx import TraceError
from prophet_mx.monitoring.trace import load_trace
from prophet_mx.monitoring.trace_figures import PARTS, busy_shares, figures
from support.traces import made, written


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


def no_whole_iteration():
    return [event for event in made() if event["name"] != "iteration"]


def iterations_of_no_time():
    return [dict(event, dur=0) if event["name"] == "iteration" else event for event in made()]


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
        (made()[:1], "shows no units"),
        (no_whole_iteration(), "shows no whole iteration"),
        (iterations_of_no_time(), "take no time"),
        (made() + [{"ph": "X", "name": "wait"}], "damaged: event"),
        (made() + [3], "damaged: event"),
        (made() + [{"ph": "X", "name": "wait", "pid": 1, "tid": 1, "ts": -1, "dur": 1, "args": {"iteration": 1}}], "damaged: event"),
        (json.dumps(made())[:-40], "not a complete JSON"),
    ],
)
def test_what_is_no_trace_is_one_line_and_code_2(tmp_path, content, word):
    with pytest.raises(TraceError) as caught:
        figures(load_trace(str(written(tmp_path / "t.json", content))))
    assert word in str(caught.value) and "t.json" in str(caught.value) and "\n" not in str(caught.value)
