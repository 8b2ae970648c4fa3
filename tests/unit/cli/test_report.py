"""The command ``prophet-mx report``: its page, and one line of error."""

import json
import os
import re
import shutil
import sys

import pytest

from support.commands import cli
from support.paths import ROOT
from support.traces import drawn, load, made, straggling, written


def test_a_page_loads_nothing_and_names_are_text(tmp_path):
    nasty = "<script>alert(1)</script>"
    trace = written(tmp_path / "a<b>&.json", made((nasty, 'quote"&'), policy=nasty))
    page = tmp_path / "r.html"
    done = cli("report", trace, "-o", page)
    assert (done.returncode, done.stdout.splitlines()[-1], done.stderr) == (0, f"written: {page}", "")
    html = page.read_text()
    assert "<script" not in html and "&lt;script&gt;" in html
    assert not re.search(r"https?:|src=|href=|url\((?!#)|@import", html)


def test_names_that_are_no_unicode_are_shown_as_far_as_they_can_be(tmp_path):
    trace = tmp_path / "t\udcff.json"  # the name of a file with a byte that is not UTF-8
    written(trace, made(("lay\udcffer", "last")))
    done = cli("report", trace, "-o", tmp_path / "r\udcff.html")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.splitlines()[-1].startswith("written: ")
    assert "lay?er" in (tmp_path / "r\udcff.html").read_text(encoding="utf-8")


def test_a_comparison_says_how_much_differs(tmp_path):
    rate = {"ph": "C", "name": "link 0", "pid": 0, "ts": 1000, "args": {"rate": 125e6}}
    slow = [dict(event, ts=2 * event["ts"], dur=2 * event["dur"]) if event["ph"] == "X" else event for event in [*made(), rate]]
    page = tmp_path / "r.html"
    assert cli("report", written(tmp_path / "slow.json", slow), written(tmp_path / "quick.json", made()), "-o", page).returncode == 0
    html = page.read_text()
    assert "<td>200 ms</td><td>100 ms</td><td>-50.0%</td>" in html and "<td>1 Gbit/s</td><td>unknown</td>" in html
    assert "<h1>prophet_mx: before and after</h1>" in html and "Before: slow.json. After: quick.json." in html
    assert "before: worker 0" in html and "after: worker 0" in html
    assert html.count("one iteration, 2 parameters") == 2


def test_all_workers_of_a_job_are_on_one_page(tmp_path):
    page = tmp_path / "r.html"
    done = cli("report", *straggling(tmp_path), "-o", page)
    assert (done.returncode, done.stderr) == (0, "")
    html = page.read_text()
    assert "<h1>prophet_mx: job-*.json</h1>" in html and "2 of 2 worker(s)" in html
    assert html.count("<td>worker ") == 2 and "Worker 1 is a straggler" in html


def test_without_the_template_engine_its_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    page = tmp_path / "r.html"
    done = cli("report", written(tmp_path / "t.json", made()), "-o", page)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and not page.exists()
    assert "pip install 'jinja2>=3'" in done.stderr and "  stall         26 ms (26%)" in done.stdout


def test_without_the_template_engine_the_lines_and_the_figures_are_there(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.chdir(tmp_path)
    trace = written(tmp_path / "t.json", made())
    done = cli("report", trace)
    assert (done.returncode, done.stderr) == (0, "") and "  stall         26 ms (26%)" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("no page was written: ") and "pip install 'jinja2>=3'" in done.stdout
    done = cli("report", trace, "--json")
    assert (done.returncode, done.stderr) == (0, "") and json.loads(done.stdout)["jobs"][0]["iteration_seconds"] == pytest.approx(0.1)
    assert os.listdir(tmp_path) == ["t.json"]


def test_the_lines_say_what_an_iteration_takes_what_limits_it_and_what_to_do(tmp_path):
    see = "See docs/troubleshooting.md, “There is no speed-up”."
    done = cli("report", *straggling(tmp_path), "-o", tmp_path / "r.html")
    assert done.stdout.splitlines() == [
        "job-*.json: 2 of 2 worker(s), 1 server(s), policy prophet",
        "  iteration     120 ms",
        "  stall         26 ms to 46 ms (38%): forward waits for the first layer's values",
        "  later waits   at most 4 ms: forward may wait for later values, as the network is at work",
        "  left to gain  at most 19 ms (16%): no order of sending takes less than about 101 ms",
        "  waited for    worker 1: 1.31 times the computing of most workers",
        "  limit         computing: workers compute for at least 70 ms to 90 ms, the network needs about 55 ms for the bytes",
        f"  next          No order of sending makes a slow worker faster: look at its machine, its data and its batch size. {see}",
        f"  next          Time is left to gain: check that all gradients are scheduled, and that large ones are cut. {see}",
        f"written: {tmp_path}/r.html",
    ]
    rate = {"ph": "C", "name": "link 0", "pid": 0, "ts": 1000, "args": {"rate": 5e7}}
    alone = cli("report", written(tmp_path / "alone.json", [*made(), rate]), "-o", tmp_path / "r.html").stdout
    assert "waited for    unknown: give the traces of all workers" in alone
    assert "limit         network: workers compute for at least 70 ms, the network needs about 100 ms for the bytes" in alone


def test_json_has_the_figures_of_the_lines_in_seconds_and_nothing_else_is_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = cli("report", *straggling(tmp_path), "--json")
    answer = json.loads(done.stdout)
    [job] = answer["jobs"]
    shown = [job[name] for name in ("iteration_seconds", "gain_seconds", "bound_seconds", "communication_seconds")]
    assert shown == [pytest.approx(value, abs=5e-4) for value in (0.120, 0.019, 0.101, 0.055)]
    assert job["stalled_seconds"] == {"least": pytest.approx(0.026), "most": pytest.approx(0.046)}
    assert job["computing_seconds"] == {"least": pytest.approx(0.070, abs=1e-3), "most": pytest.approx(0.090, abs=1e-3)}
    assert (job["limit"], job["stragglers"], answer["format"]) == ("computing", [1], "prophet_mx report 1")
    assert [(rank["rank"], round(rank["stalled_seconds"], 6)) for rank in job["ranks"]] == [(0, 0.046), (1, 0.026)]
    assert sorted(os.listdir(tmp_path)) == ["job-0.json", "job-1.json"]
    documented = (ROOT / "docs" / "timeline.md").read_text(encoding="utf-8")
    two = json.loads(cli("report", written(tmp_path / "a.json", made()), written(tmp_path / "b.json", made(late=3)), "--json").stdout)
    for name in {*answer, *two, *job, *job["ranks"][0], *job["stalled_seconds"], *job["next"][0]}:
        assert f"`{name}`" in documented, name
    done = cli("report", tmp_path / "a.json", "--json", "-o", tmp_path / "r.html")
    assert json.loads(done.stdout) and (tmp_path / "r.html").exists()


def test_the_traces_of_all_workers_become_one_on_one_clock(tmp_path):
    units = [(1000, 20, 20, 25, 30, 31), (2000, 0, 0, 5, 8, 9)]
    first, second = (written(tmp_path / f"t-{rank}.json", drawn(units, 100, rank=rank, clock=700 * rank)) for rank in range(2))
    whole = tmp_path / "m.json"
    done = cli("report", first, second, "--merge", whole, "-o", tmp_path / "r.html")
    assert done.returncode == 0 and f"written: {whole}" in done.stdout
    events = load(whole)
    begins = {pid: [e["ts"] for e in events if e["name"] == "iteration" and e["pid"] == pid] for pid in (1, 3)}
    assert len(begins[1]) == 4 and begins[1] == pytest.approx(begins[3], abs=0.01) and min(begins[1]) >= 0
    assert len(events) == 1 + len(load(first)) + len(load(second))
    again = cli("report", whole)
    assert again.returncode == 2 and "not a trace of prophet_mx" in again.stderr
    html = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "All workers on one clock" in html and "half of the answers agree within 0 ms" in html


def test_traces_that_share_no_answer_are_reported_but_not_merged(tmp_path):
    units = [(1000, 20, 20, 25, 30, 31), (2000, 0, 0, 5, 8, 9)]
    first = written(tmp_path / "t-0.json", drawn(units, 100))
    later = [
        {**e, "args": {**e["args"], "iteration": 50 + e["args"]["iteration"]}} if e["ph"] == "X" else e for e in drawn(units, 100, rank=1)
    ]
    second = written(tmp_path / "t-1.json", later)
    done = cli("report", first, second, "-o", tmp_path / "r.html")
    assert done.returncode == 0 and "All workers on one clock" not in (tmp_path / "r.html").read_text(encoding="utf-8")
    done = cli("report", first, second, "--merge", tmp_path / "m.json", "-o", tmp_path / "r.html")
    assert done.returncode == 2 and "nothing says how the workers' clocks differ" in done.stderr and not (tmp_path / "m.json").exists()


def test_errors_of_the_command(tmp_path):
    trace, foreign = written(tmp_path / "t.json", made()), written(tmp_path / "f.json", "[1]")
    others = [written(tmp_path / f"{policy}.json", made(policy=policy)) for policy in ("fifo", "priority")]
    (tmp_path / "link.json").symlink_to(trace)
    os.link(trace, tmp_path / "hard.json")
    shutil.copy(trace, tmp_path / "copy.json")
    (tmp_path / "sub").mkdir()
    for arguments, code, word in (
        ([foreign], 2, "not a trace"),
        ([tmp_path / "none.json"], 2, "No such file"),
        ([trace, foreign], 2, "not a trace"),
        ([trace, "-o", trace], 2, "it is a trace"),
        ([trace, *others], 2, "traces of 3 jobs"),
        ([trace, trace], 2, f"TRACE '{trace}' is not allowed: it is the same file as '{trace}'; allowed: each trace once"),
        ([trace, tmp_path / "sub" / ".." / "t.json"], 2, "is the same file as"),
        ([tmp_path / "link.json", others[0], trace], 2, "is the same file as"),
        ([trace, tmp_path / "hard.json"], 2, "is the same file as"),
        ([trace, tmp_path / "copy.json"], 2, f"it is a copy of '{trace}'"),
        ([trace, "--merge", trace], 2, "it is a trace"),
        (
            [trace, others[0], "--merge", tmp_path / "m.json"],
            2,
            "--merge is not allowed with the traces of 2 jobs; allowed: the traces of one job",
        ),
        ([trace, "-o", tmp_path / "no" / "r.html"], 2, "a folder that exists"),
    ):
        done = cli("report", *arguments)
        assert done.returncode == code and word in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    assert json.loads(trace.read_text()) == made()
    shown = cli("report", "--help").stdout
    assert "prophet-mx report trace-*.json -o report.html" in shown and "exit codes" in shown


def test_a_page_that_cannot_be_written_is_code_1(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    done = cli("report", written(tmp_path / "t.json", made()), "-o", tmp_path / "pipe")
    assert done.returncode == 1 and done.stderr.endswith("is not a regular file\n")

    def full(path, text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("prophet_mx.cli.report.replace_text", full)
    done = cli("report", written(tmp_path / "t.json", made()), "-o", tmp_path / "r.html")
    assert done.returncode == 1 and done.stderr.endswith("cannot be written: No space left on device\n")
