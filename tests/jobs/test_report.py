"""prophet-mx report: right numbers, a page that a browser shows, and one line of error for what is no trace."""
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from prophet_mx import TraceError
from prophet_mx.cli.main import main
from prophet_mx.monitoring.trace import load_trace
from prophet_mx.monitoring.trace_figures import PARTS, busy_shares, figures
from support.cluster import package_env, run_cluster
from support.paths import SCRIPTS

JOB = SCRIPTS / "timeline.py"
LIMIT = 60      # seconds
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--hide-scrollbars"]


def report(*arguments):
    return subprocess.run([sys.executable, "-m", "prophet_mx", "report", *map(str, arguments)], env={**os.environ, **package_env()},
                          timeout=LIMIT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          universal_newlines=True)


def made(names=("first", "second"), iterations=5, policy="prophet"):
    """A trace as the timeline writes it. Every iteration takes 100 ms: 'second' is ready at 0 ms and takes the wire until 40, 'first' is
    ready at 30, goes out from 40 to 50, is answered at 55 and unpacked at 56; 'second' is answered at 60, unpacked at 65."""
    events = [{"ph": "M", "name": "prophet_mx", "pid": 1, "args": {"format": "prophet_mx timeline 1", "rank": 0, "workers": 2,
                                                                  "servers": 1, "policy": policy, "started": "2026-01-01T00:00:00Z"}}]
    for unit, (name, size) in enumerate(zip(names, (1_000_000, 4_000_000))):
        events.append({"ph": "M", "name": "thread_name", "pid": 2, "tid": unit + 1, "args": {
            "name": name, "parameter": name, "unit": unit, "gradient": unit, "bytes": size, "link": 0, "rank": unit}})
    for number in range(iterations):
        def add(name, row, begin, end, process=1, **args):
            events.append({"ph": "X", "name": name, "pid": process, "tid": row, "ts": 100_000 * number + 1000 * begin,
                           "dur": 1000 * (end - begin), "args": {"iteration": number, **args}})
        for row, name, ready, released, drained, answered, landed, step in ((2, names[1], 0, 0, 40, 60, 65, 0),
                                                                           (1, names[0], 30, 35, 50, 55, 56, 1)):
            add("wait", row, ready, released, 2, step=step)
            add("wire", row, released, drained, 2, block=number)
            add("answer", row, drained, answered, 2)
            add(name, 10, max(released, 40 if row == 1 else 0), drained)
            add("unpack", row, answered, landed, 2)
            if row == 2 and number:
                add("compute gap", 3, -40, 0)
            add("step", 2, ready, ready, step=step, units=1, bytes=1_000_000 if row == 1 else 4_000_000)
        if number + 1 < iterations:
            add("iteration", 1, 0, 100)
    return events


def written(path, events):
    path.write_text(events if isinstance(events, str) else json.dumps(events))
    return path


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """The traces of a real job of two workers."""
    folder = tmp_path_factory.mktemp("real")
    run_cluster(JOB, 2, 1, args=[folder, 12, 30_000, 12], timeout=LIMIT, env={
        "PROPHET_TIMELINE": str(folder / "job.json"), "PROPHET_UNIT": "60000", "PROPHET_BANDWIDTH": "50MB", "PROPHET_WARMUP": "2"})
    return [folder / f"job-{rank}.json" for rank in range(2)]


def test_the_figures_of_a_trace_whose_times_are_known(tmp_path):
    found = figures(load_trace(str(written(tmp_path / "t.json", made()))))
    assert [iteration.number for iteration in found.iterations] == [0, 1, 2, 3]     # the last one has no end
    assert found.seconds == pytest.approx(0.1)
    assert {part: round(found.part(part), 6) for part in PARTS} == {"backward": 0.030, "stalled": 0.026, "arriving": 0.009,
                                                                    "compute": 0.035}
    assert found.first_parameter == "first"
    assert {stage: round(found.first_wait(stage), 6) for stage in ("wait", "wire", "answer", "unpack", "total")} == {
        "wait": 0.005, "wire": 0.015, "answer": 0.005, "unpack": 0.001, "total": 0.026}
    assert found.utilisation == pytest.approx(0.5)
    assert [iteration.idle for iteration in found.iterations] == pytest.approx([0.04] * 4)
    assert [round(share, 6) for share in busy_shares(found.trace, found.median, 4)] == [1, 1, 0, 0]
    assert [(step.begin, step.units, step.bytes) for step in found.steps] == [
        (pytest.approx(0), 1, 4_000_000), (pytest.approx(0.03), 1, 1_000_000)]


def test_the_figures_of_a_real_job_add_up(traces):
    for path in traces:
        found = figures(load_trace(str(path)))
        assert len(found.iterations) >= 3
        for iteration in found.iterations:
            assert sum(iteration.parts.values()) == pytest.approx(iteration.seconds, abs=1e-5)
            assert min(iteration.parts.values()) >= 0 and 0 < iteration.utilisation <= 1
            assert iteration.bytes == 12 * 30_000 * 4
        assert found.first_parameter == "layer0"
        assert sum(step.bytes for step in found.steps) == pytest.approx(12 * 30_000 * 4, rel=0.2)


def test_a_page_loads_nothing_and_names_are_text(tmp_path):
    nasty = "<script>alert(1)</script>"
    trace = written(tmp_path / "a<b>&.json", made((nasty, 'quote"&'), policy=nasty))
    page = tmp_path / "r.html"
    done = report(trace, "-o", page)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"written: {page}\n", "")
    html = page.read_text()
    assert "<script" not in html and "&lt;script&gt;" in html
    assert not re.search(r"https?:|src=|href=|url\(|@import", html)


def test_a_comparison_says_how_much_differs(tmp_path):
    rate = {"ph": "C", "name": "link 0", "pid": 0, "ts": 1000, "args": {"rate": 125e6}}
    slow = [dict(event, ts=2 * event["ts"], dur=2 * event["dur"]) if event["ph"] == "X" else event for event in [*made(), rate]]
    page = tmp_path / "r.html"
    assert report(written(tmp_path / "slow.json", slow), written(tmp_path / "quick.json", made()), "-o", page).returncode == 0
    html = page.read_text()
    assert "<td>200 ms</td><td>100 ms</td><td>-50.0%</td>" in html and "<td>1 Gbit/s</td><td>0 bit/s</td>" in html
    assert html.count("slow.json") > 3 and html.count("quick.json") > 3
    assert html.count("one iteration, a row per parameter") == 2


def test_without_the_template_engine_the_extra_is_named(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    page = tmp_path / "r.html"
    assert main(["report", str(written(tmp_path / "t.json", made())), "-o", str(page)]) == 2
    said = capsys.readouterr().err
    assert "pip install 'prophet_mx[report]'" in said and len(said.splitlines()) == 1 and not page.exists()


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian: apt-get install chromium)")
def test_a_browser_shows_the_page(traces, tmp_path):
    image = pytest.importorskip("PIL.Image")
    page, shot = tmp_path / "r.html", tmp_path / "r.png"
    assert report(*traces, "-o", page).returncode == 0

    def chromium(*arguments):
        profile = tmp_path / f"user-{len(arguments)}"
        done = subprocess.run([CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *arguments, page.as_uri()], timeout=LIMIT,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        return done.stdout.decode()

    content = chromium("--dump-dom")
    for heading in ("What an iteration is made of", "Wait of the first layer", "Link utilisation", "Step pattern", "One iteration",
                    "Iteration time"):
        assert f"<h2>{heading}</h2>" in content
    assert content.count("<svg") == 9 and "layer11" in content and "NaN" not in content and "nan" not in content
    chromium(f"--screenshot={shot}", "--window-size=1110,2400")
    picture = image.open(shot).convert("RGB")
    assert picture.size == (1110, 2400)
    colours = {colour: count for count, colour in picture.getcolors(1 << 24)}
    for colour in ((0x33, 0x65, 0x9e), (0xcc, 0x66, 0x11), (0x99, 0xc2, 0xe8), (0xd5, 0xd5, 0xd5)):    # both traces' bars, answers, waits
        assert colours.get(colour, 0) > 200, colour


def no_whole_iteration():
    return [event for event in made() if event["name"] != "iteration"]


@pytest.mark.parametrize("content, word", [
    ("", "not a complete JSON"), ("[", "not a complete JSON"), ("\0\1", "not a complete JSON"), ("[" * 100_000, "not a complete JSON"),
    ("[]", "not a trace of prophet_mx"), ("{}", "not a trace of prophet_mx"), ("3", "not a trace of prophet_mx"),
    ('{"traceEvents": []}', "not a trace of prophet_mx"), ('[{"ph": "X", "name": "other"}]', "not a trace of prophet_mx"),
    ('[{"name": "prophet_mx", "args": {"format": "prophet_mx timeline 9"}}]', "this version reads"),
    (made()[:1], "shows no units"), (no_whole_iteration(), "shows no whole iteration"),
    (made() + [{"ph": "X", "name": "wait"}], "damaged: event"), (made() + [3], "damaged: event"),
    (made() + [{"ph": "X", "name": "wait", "pid": 1, "tid": 1, "ts": -1, "dur": 1, "args": {"iteration": 1}}], "damaged: event"),
    (json.dumps(made())[:-40], "not a complete JSON"),
])
def test_what_is_no_trace_is_one_line_and_code_2(tmp_path, content, word):
    with pytest.raises(TraceError) as caught:
        figures(load_trace(str(written(tmp_path / "t.json", content))))
    assert word in str(caught.value) and "t.json" in str(caught.value) and "\n" not in str(caught.value)


def test_errors_of_the_command(tmp_path):
    trace, foreign = written(tmp_path / "t.json", made()), written(tmp_path / "f.json", "[1]")
    for arguments, code, word in (([foreign], 2, "not a trace"), ([tmp_path / "none.json"], 2, "No such file"),
                                  ([trace, foreign], 2, "not a trace"), ([trace, "-o", trace], 2, "it is a trace"),
                                  ([trace, "-o", tmp_path / "no" / "r.html"], 1, "cannot be written")):
        done = report(*arguments)
        assert done.returncode == code and word in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    assert json.loads(trace.read_text()) == made()
    shown = report("--help").stdout
    assert "prophet-mx report fifo-0.json prophet-0.json -o report.html" in shown and "exit codes" in shown
