"""The example that shows prediction, report and timeline on traces that ship."""

import re
import sys

from prophet_mx.monitoring.trace import load_trace
from prophet_mx.monitoring.trace_figures import figures
from prophet_mx.monitoring.trace_jobs import jobs
from support.commands import run
from support.paths import ROOT

FOLDER = ROOT / "examples" / "first-look"


def test_the_script_predicts_and_writes_the_report(tmp_path):
    done = run("sh", FOLDER / "look.sh", tmp_path, env={"COMMAND": f"{sys.executable} -m prophet_mx"}, expect=0)
    assert re.search(r"^  Scheduling \w+", done.stdout, re.MULTILINE) and f"written: {tmp_path}/report.html" in done.stdout
    assert re.search(
        r"^after: prophet-.*\n  iteration .*\n  stall .*\n  later waits .*\n  left to gain  at most 18 ms", done.stdout, re.MULTILINE
    )
    assert "no worker" in done.stdout and "stragg" not in done.stdout
    assert "Before and after" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_traces_are_of_two_jobs_and_the_scheduled_one_is_faster():
    traces = [load_trace(str(path)) for path in sorted((FOLDER / "traces").glob("*.json"))]
    before, after = jobs([figures(trace) for trace in traces])
    assert (len(before.workers), len(after.workers)) == (2, 2) and after.seconds < before.seconds
    assert sum(path.stat().st_size for path in (FOLDER / "traces").iterdir()) < 10**6
