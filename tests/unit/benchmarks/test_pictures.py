"""The numbers of the pictures: measured times, speed-ups, and what a worker did in an iteration that was recorded."""

import json

import pytest

from benchmarks.pictures.recordings import LANES, RECORDED, Told, drawn, load_recording, save_recording, stored
from benchmarks.pictures.spans import TOUCHING, Count, DrawnIteration, Span, carried, of_median, plain_order
from benchmarks.pictures.speedups import BOUND, NAMES, Bars, bars, speed_up
from prophet_mx.errors import ConfigError
from prophet_mx.profiling.gradient_profile import Gradient, GradientProfile
from support.results import CELL, jobs, published
from support.traces import made, written

MB = 10**6
# Its keys are in the order of the names, which is that of the layers; 'second' is ready first.
TWO = GradientProfile("two", [Gradient("first", MB, 0.01, 0.03), Gradient("second", 4 * MB, 0.01, 0.02)], ((1,), (0,)))


def test_the_bars_are_the_published_times_of_each_model_and_the_least_possible(tmp_path):
    assert bars(tmp_path) == []
    other = CELL.replace("resnet50_v1", "vgg16")
    rows = [
        *jobs("pushpull", 240, 250, 260),
        *jobs("prophet", 160),
        *jobs("p3-push+pull", 200, cell=other),
        *jobs("prophet", 170, cell=other),
    ]
    published(tmp_path, "models", rows, cells=[CELL, other])
    first, second = bars(tmp_path / "benchmarks" / "results")
    assert first == Bars("ResNet-50", {"plain dist_sync": 250.0, "prophet": 160.0, BOUND: 150.0})
    assert second == Bars("VGG-16", {"P3": 200.0, "prophet": 170.0, BOUND: 150.0})


def test_simulated_speed_ups_vanish_on_fast_links():
    assert speed_up("mobilenetv2_1.0", 1, {}) > 1.2
    assert speed_up("mobilenetv2_1.0", 100, {}) == pytest.approx(1.0, abs=0.02)


# --- what a link carried ---


def flat(spans):
    """The numbers of spans, one after the other."""
    return [number for span in spans for number in span]


def test_the_bytes_that_a_link_counts_are_those_of_gradients_in_their_order():
    counts = [(0.0, 7), (0.01, 7), (0.02, 4 * MB + 7), (0.03, 5 * MB + 7), (0.04, 5 * MB + 8), (0.05, 5 * MB + 8)]
    order = [(1, 4 * MB), (0, MB)]
    expected = flat([Span(0.01, 0.02, 1), Span(0.02, 0.03, 0)])
    assert flat(carried(counts, order, 1e9)) == pytest.approx(expected)
    # Headers belong to all of them alike.
    more = [(at, count * 3) for at, count in counts]
    assert flat(carried(more, order, 1e9)) == pytest.approx(expected)


def test_a_gradient_may_end_between_two_counts_and_pauses_are_shown_unless_they_are_short():
    counts = [(0.0, 0), (0.01, MB), (0.012, MB), (0.022, 2 * MB), (0.032, 2 * MB), (0.042, 5 * MB)]
    found = carried(counts, [(2, 1_500_000), (1, 500_000), (0, 3 * MB)], 1e9)
    assert flat(found) == pytest.approx(flat([Span(0.0, 0.017, 2), Span(0.017, 0.022, 1), Span(0.032, 0.042, 0)]))
    assert carried([], [(0, 1)], 1e9) == [] == carried(counts, [], 1e9)


def test_plain_sends_steps_as_they_become_ready_and_within_one_as_they_are_pushed():
    profile = GradientProfile("three", [*TWO.gradients, Gradient("third", 7, 0.01, 0.01)], ((1, 2), (0,)))
    assert plain_order(profile, [0, 2, 1]) == [(2, 7), (1, 4 * MB), (0, MB)]
    assert plain_order(profile, [0, 1, 2]) == [(1, 4 * MB), (2, 7), (0, MB)]


# --- what a job has told ---


def told(trace=""):
    """Of a worker. Iteration 1 takes 100 ms, 2 takes 90 and 3 takes 120. In 1 the link has counted what was sent from 10 ms of it on, and
    what was received from 60 ms on."""
    spans, arrivals = [], []
    for number, begin in enumerate((9.98, 10.08, 10.18, 10.27, 10.39)):
        spans += [[number, 1, 0, begin, begin + 0.02], [number, 1, 1, begin + 0.02, begin + 0.05]]
        spans += [[number + 1, 0, 0, begin + 0.076, begin + 0.086], [number + 1, 0, 1, begin + 0.087, begin + 0.1]]
        arrivals += [[number, 0, begin + 0.075], [number, 1, begin + 0.085]]
    counts = [Count(10.08 + 0.01 * step, 9 + MB * min(max(0, step - 1), 5), 7 + MB * max(0, min(step - 5, 5))) for step in range(11)]
    return Told({"spans": spans, "arrivals": arrivals}, counts, trace)


def test_a_plain_iteration_is_what_the_accelerator_the_link_and_the_engine_told():
    one, seconds = drawn(told(), TWO, 1e8, 1)
    assert seconds == pytest.approx([0.1, 0.09, 0.12])
    assert one.seconds == pytest.approx(0.1) and one.first_layer == pytest.approx(0.075)
    assert [span.gradient for span in (*one.backward, *one.forward)] == [1, 0, 0, 1]
    assert flat(one.stalls) == pytest.approx([0.05, 0.076, 0.086, 0.087]) and one.stalled == pytest.approx(0.027)
    assert flat(one.sends) == pytest.approx(flat([Span(0.01, 0.05, 1), Span(0.05, 0.06, 0)]))
    assert [span.gradient for span in one.receives] == [0, 1]  # as they arrived
    computing = sum(span.end - span.begin for span in (*one.backward, *one.forward))
    assert computing + one.stalled == pytest.approx(one.seconds)


def test_of_a_scheduled_iteration_the_timeline_tells_the_order(tmp_path):
    path = written(tmp_path / "trace.json", made())  # 'second' leaves first, and 'first' is answered first
    one, _ = drawn(told(str(path)), TWO, 1e8, 1)
    assert [span.gradient for span in one.sends] == [1, 0] and [span.gradient for span in one.receives] == [0, 1]


def test_the_iteration_of_median_length_is_shown():
    assert of_median([(0.3, 5), (0.1, 6), (0.2, 7)]) == 7


def test_a_recording_is_read_as_it_was_written(tmp_path):
    one = DrawnIteration(0.1, [Span(0.0, 0.05, 1)], [Span(0.06, 0.1, 0)], [Span(0.01, 0.02, 1)], [], 0.06)
    file = tmp_path / "traces" / "one.json"
    save_recording(file, {"cell": CELL, "gradients": 2}, {"pushpull": stored((one, [0.1])), "prophet": stored((one, [0.1]))})
    recording = load_recording(file)
    assert recording.about == {"cell": CELL, "gradients": 2} and recording.cell.servers == 1
    assert recording.iterations == {"pushpull": one, "prophet": one}
    for text in ("{}", "[", '{"methods": {"a": {}}}'):
        file.write_text(text)
        with pytest.raises(ConfigError, match="no recorded iteration"):
            load_recording(file)


# --- the recording that is published ---


def test_the_published_recording_is_of_real_jobs_and_small():
    recording = load_recording()
    assert RECORDED.stat().st_size < 100_000
    assert len(recording.about["commit"]) == 40 and not recording.about["dirty"]
    assert {"date", "command", "machine"} <= set(recording.about)
    assert recording.about["megabytes"] == pytest.approx(102.3)  # not scaled
    plain, ours = (recording.iterations[method] for method in NAMES)
    for one in (plain, ours):
        for lane in LANES:
            spans = getattr(one, lane)
            assert all(before.end <= after.begin + TOUCHING for before, after in zip(spans, spans[1:])), lane
            assert spans[0].begin >= 0 and spans[-1].end <= one.seconds + TOUCHING, lane
        computing = sum(span.end - span.begin for span in (*one.backward, *one.forward))
        assert computing == pytest.approx(recording.about["compute_ms"] / 1e3, rel=0.01)
        assert one.seconds > recording.about["bound_ms"] / 1e3 and 0 <= one.forward[0].begin - one.first_layer < 0.002
    # What the pages say of it.
    assert plain.sends[-1].gradient in range(12) and plain.forward[0].begin > plain.sends[-1].end
    assert ours.forward[0].begin < ours.sends[-1].end - 0.1
    for method in NAMES:
        found = json.loads(RECORDED.read_text())["methods"][method]
        assert found["iteration"] == sorted(found["of"])[len(found["of"]) // 2]


def test_the_picture_is_drawn_from_the_published_recording(tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra plot")
    from benchmarks import plots

    plots.settle()
    recording = load_recording()
    plots.save(plots.draw_iteration(recording), tmp_path, "iteration")
    text = (tmp_path / "iteration.svg").read_text(encoding="utf-8")
    for method, name in NAMES.items():
        assert f"{name}: {recording.iterations[method].seconds * 1e3:.0f} ms per iteration" in text
    assert "102 MB of gradients" in text and "Recorded in two real jobs" in text
    assert (tmp_path / "iteration.png").stat().st_size > 10_000
