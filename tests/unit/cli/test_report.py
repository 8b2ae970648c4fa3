"""The command ``prophet-mx report``: its page, and one line of error."""

import json
import os
import re
import sys

from support.commands import cli
from support.traces import made, straggling, written


def test_a_page_loads_nothing_and_names_are_text(tmp_path):
    nasty = "<script>alert(1)</script>"
    trace = written(tmp_path / "a<b>&.json", made((nasty, 'quote"&'), policy=nasty))
    page = tmp_path / "r.html"
    done = cli("report", trace, "-o", page)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"written: {page}\n", "")
    html = page.read_text()
    assert "<script" not in html and "&lt;script&gt;" in html
    assert not re.search(r"https?:|src=|href=|url\((?!#)|@import", html)


def test_names_that_are_no_unicode_are_shown_as_far_as_they_can_be(tmp_path):
    trace = tmp_path / "t\udcff.json"  # the name of a file with a byte that is not UTF-8
    written(trace, made(("lay\udcffer", "last")))
    done = cli("report", trace, "-o", tmp_path / "r\udcff.html")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("written: ")
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
    assert "pip install 'jinja2>=3'" in done.stderr


def test_errors_of_the_command(tmp_path):
    trace, foreign = written(tmp_path / "t.json", made()), written(tmp_path / "f.json", "[1]")
    for arguments, code, word in (
        ([foreign], 2, "not a trace"),
        ([tmp_path / "none.json"], 2, "No such file"),
        ([trace, foreign], 2, "not a trace"),
        ([trace, "-o", trace], 2, "it is a trace"),
        ([trace, trace, trace], 2, "traces of 3 jobs"),
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
