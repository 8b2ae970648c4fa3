"""What the report's page says and shows, and that it can be read: contrast, patterns, what is drawn."""

import re
from itertools import combinations

import pytest

from prophet_mx.monitoring.report_charts import HEAVIEST, MOST_WORKERS, gantt, heaviest, parameters, together
from prophet_mx.monitoring.report_page import hints, opening, page, straggler, table
from prophet_mx.monitoring.report_shapes import INKS, PAGE, Curve, Rect
from prophet_mx.monitoring.trace import load_trace
from prophet_mx.monitoring.trace_figures import PARTS, figures
from prophet_mx.monitoring.trace_file import STAGES
from prophet_mx.monitoring.trace_jobs import jobs
from support.paths import ROOT
from support.traces import drawn, made, straggling, written


def load(*paths):
    return [figures(load_trace(str(path))) for path in paths]


@pytest.fixture
def slow_worker(tmp_path):
    """The figures of a job of two workers of which one is slow."""
    return load(*straggling(tmp_path))


@pytest.fixture
def two_jobs(tmp_path):
    """The figures of a job whose iterations take twice as long, and of another."""
    slow = [dict(event, ts=2 * event["ts"], dur=2 * event["dur"]) if event["ph"] == "X" else event for event in made(policy="fifo")]
    return load(written(tmp_path / "slow.json", slow), written(tmp_path / "quick.json", made()))


def contrast(one, other):
    """The contrast ratio of two colours by WCAG 2, from 1 to 21."""

    def luminance(colour):
        channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_of_known_colours():
    assert contrast("#000000", "#ffffff") == pytest.approx(21) and contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_every_text_has_a_contrast_of_at_least_4_5(two_jobs):
    """All text is on the page or on a plate of its colour: no chart puts it on a bar."""
    html = page(jobs(two_jobs))
    style = html[html.index("<style>") : html.index("</style>")]
    texts = set(re.findall(r"(?<![-\w])color: (#\w+)", style) + re.findall(r'<text [^>]*fill="(#\w+)"', html))
    assert len(texts) >= 4 and f"background: {PAGE}" in style
    for colour in texts:
        assert contrast(colour, PAGE) >= 4.5, colour


@pytest.mark.parametrize("names", [PARTS, STAGES], ids=["parts", "stages"])
def test_what_lies_side_by_side_differs_in_luminance_and_in_its_pattern(names):
    """Also if what is between them takes no time, and from the page."""
    for one, other in combinations([INKS[name].colour for name in names] + [PAGE], 2):
        assert contrast(one, other) >= 1.5, (one, other)
    assert all(INKS[one].pattern != INKS[other].pattern for one, other in zip(names, names[1:]))


def test_the_verdict_says_how_much_is_stall_what_is_left_to_gain_and_the_bound(slow_worker, two_jobs):
    [job] = jobs(slow_worker)
    [said] = opening([job])
    assert said == (
        "The workers stall for 26 ms to 46 ms of each 120 ms iteration (22% to 38%), waiting for the first layer's values. "
        "At most 19 ms are left to gain (1.19 times as fast): the lower bound for this profile is about 101 ms, which no order of sending "
        "can beat."
    )
    assert straggler(job) == (
        "Worker 1 is a straggler: it computes for at least 85 ms of an iteration, 1.31 times as long as most of the others, "
        "which wait for it."
    )
    both = jobs(two_jobs)
    assert opening(both)[0] == "An iteration takes 100 ms after (quick.json) and 200 ms before (slow.json): 2.00 times as fast, better."
    assert (
        opening(both[::-1])[0] == "An iteration takes 200 ms after (slow.json) and 100 ms before (quick.json): 2.00 times as slow, worse."
    )
    assert opening(both)[1].startswith("After, the worker stalls for 26 ms of each 100 ms iteration (26%)")


def test_the_hint_says_the_same_as_the_verdict_about_what_is_left_to_gain(tmp_path, slow_worker):
    """Also where links are busy, and where arriving values are most of an iteration: then nobody knows how long the worker computes."""
    busy = [dict(event, dur=95_000) if event.get("tid") == 10 and event["name"] == "second" else event for event in made()]
    found = {"left": jobs(slow_worker)[0], "busy": jobs(load(written(tmp_path / "busy.json", busy)))[0]}
    for job in found.values():
        said = " ".join(hint.sentence for hint in hints(job))
        assert ("are left to gain" in opening([job])[0]) == ("Time is left to gain" in said) != ("nothing else" in said), said


def test_arriving_values_are_not_counted_as_computing(slow_worker):
    """26 to 46 ms of 120 are stalled, and in 9 values arrive."""
    assert [round(1e3 * worker.computing) for worker in slow_worker] == [65, 85]
    assert [round(1e3 * worker.part("arriving")) for worker in slow_worker] == [9, 9]
    assert re.search(r"<td>85 ms</td><td>9(\.00?)? ms</td>", page(jobs(slow_worker)))


def test_hints_name_pages_and_headings_that_exist(slow_worker, two_jobs):
    lost = load_trace(slow_worker[0].trace.path)
    lost.lost = 3
    named = [hint for figs in (slow_worker, two_jobs, [figures(lost)]) for job in jobs(figs) for hint in hints(job)]
    assert {"docs/troubleshooting.md", "docs/timeline.md"} == {hint.page for hint in named}
    shown = re.findall(r"See <cite>(.*?)</cite>, “(.*?)”", page(jobs(slow_worker)))
    assert shown
    for path, heading in [(hint.page, hint.heading) for hint in named] + shown:
        assert f"\n## {heading}\n" in (ROOT / path).read_text(encoding="utf-8"), (path, heading)


def test_before_and_after_are_in_percent_or_points_and_judged(two_jobs):
    rows = {what: (change, judged) for what, _, change, judged in table(jobs(two_jobs))}
    assert rows["iteration"] == ("-50.0%", "better")
    assert rows["stalled, share of the iteration"] == ("+0.0 points", "same")
    assert rows["links busy"] == ("+0.0 points", "same") and rows["sent per iteration"] == ("+0.0%", "same")
    assert {judged for what, _, _, judged in table(jobs(two_jobs[::-1])) if what in ("iteration", "links busy")} == {"worse", "same"}
    html = page(jobs(two_jobs))
    assert '<td class="better">✔ better</td>' in html and "Before and after" in html
    assert '<td class="worse">✘ worse</td>' in page(jobs(two_jobs[::-1]))


def test_a_smaller_share_of_stall_is_better_by_so_many_points(tmp_path):
    """46 of 120 ms, and 26 of 100."""
    paths = [written(tmp_path / f"{late}.json", made(policy=policy, late=late)) for late, policy in ((20, "fifo"), (0, "prophet"))]
    rows = {what: rest for what, *rest in table(jobs(load(*paths)))}
    assert rows["stalled, share of the iteration"] == [["38.3%", "26.0%"], "-12.3 points", "better"]


def test_two_jobs_are_called_before_and_after_and_each_says_who_is_slow(tmp_path):
    folders = [tmp_path / name for name in ("old", "new")]
    for folder in folders:
        folder.mkdir()
    before, after = jobs(load(*(path for folder in folders for path in straggling(folder))))
    assert (before.label, after.label) == ("before", "after")
    assert straggler(before).startswith("Before, worker 1 is a straggler: it computes for at least 85 ms")
    assert straggler(after).startswith("After, worker 1 is a straggler: it computes for at least 85 ms")


def test_a_row_per_worker_and_the_slow_one_is_marked(slow_worker):
    html = page(jobs(slow_worker))
    rows = re.findall(r"<tr([^>]*)><td>(worker \d)</td>.*?<td>(\w*)</td></tr>", html, re.DOTALL)
    assert rows == [("", "worker 0", ""), (' class="alarm"', "worker 1", "straggler")]


def test_blocks_steps_and_points_are_drawn(slow_worker, two_jobs):
    shapes = gantt(slow_worker[1], 0.12, parameters(slow_worker[1])).shapes
    titles = [shape.title for shape in shapes if isinstance(shape, Rect)]
    assert "block of 2 units, 5000 KB; 6000 KB were predicted to fit" in titles
    assert "step 1: after 50 ms, 1 units, 1 MB" in titles and "first: wire 15 ms, from 55 ms" in titles
    assert Curve([(0, 0)] * 120, INKS["wire"]).marks and not Curve([(0, 0)] * 121, INKS["wire"]).marks
    html = page(jobs(two_jobs))
    assert "step: gradients become ready together" in html and "block: sent without a pause" in html
    assert html.count('r="3"') > 4 and html.count('width="6" height="6" fill="#c8401a"') > 4  # the points of both jobs


def test_the_first_layer_is_on_top_with_the_heaviest_and_the_rest_is_on_demand(tmp_path):
    """30 parameters whose bytes grow with their rank; the heaviest are the last ones."""
    names = [f"layer{place}" for place in range(30)]
    events, units = made()[:1], []
    for unit, name in enumerate(names):
        facts = {"name": name, "parameter": name, "unit": unit, "gradient": unit, "bytes": 1000 * (unit + 1), "link": 0, "rank": unit}
        events.append({"ph": "M", "name": "thread_name", "pid": 2, "tid": unit + 1, "args": facts})
        units += [dict(event, tid=unit + 1) for event in made()[3:] if event.get("pid") == 2 and event["tid"] == 1]
    events += units + [event for event in made()[3:] if event["name"] in ("iteration", "step", "block")]
    [found] = load(written(tmp_path / "t.json", events))
    assert heaviest(found) == ["layer0"] + names[-HEAVIEST:] and parameters(found) == names
    html = page(jobs([found]))
    few, _, every = html[html.index("<h2>One iteration") :].partition("<details><summary>All parameters</summary>")
    every = every[: every.index("</details>")]
    assert "layer0<" in few and "layer29<" in few and "layer7<" not in few
    assert "layer7<" in every


def test_workers_whose_clocks_differ_are_drawn_beneath_one_another_on_one_clock(tmp_path):
    """Worker 1 makes its gradients 10 ms later, and began its trace 700 ms earlier."""
    rows = [(1000, 20, 21, 25, 40, 41), (2000, 0, 0, 5, 18, 19)]
    later = [(1000, 20, 21, 25, 30, 31), (2000, 0, 0, 5, 8, 9)]
    traces = drawn(rows, 100), drawn(later, 100, rank=1, clock=710)
    [job] = jobs(load(*(written(tmp_path / f"t-{rank}.json", events) for rank, events in enumerate(traces))))
    titles = [shape.title for shape in together(job).shapes if isinstance(shape, Rect)]
    for said in (
        "worker 0: backward 20 ms, from 0 ms",
        "worker 1: backward 20 ms, from 10 ms",
        "worker 0: stalled 21 ms, from 20 ms",
        "worker 1: stalled 11 ms, from 30 ms",
        "worker 1: layer0: answer 5 ms, from 35 ms",
        "worker 1: link 0 carries bytes for 4 ms, from 31 ms",
    ):
        assert said in titles, titles
    assert together(jobs(load(tmp_path / "t-0.json"))[0]) is None


def test_of_many_workers_the_first_are_drawn_and_the_page_says_so(tmp_path):
    rows, count = [(1000, 20, 21, 25, 40, 41), (2000, 0, 0, 5, 18, 19)], MOST_WORKERS + 2
    html = page(jobs(load(*(written(tmp_path / f"t-{rank}.json", drawn(rows, 100, rank=rank)) for rank in range(count)))))
    assert f"half of the answers agree within 0 ms; the first {MOST_WORKERS} of {count} workers" in html
