"""What visitors of the repository expect: templates, CI, citation, contacts, and a dashboard that shows what there is."""

import json
import re

import pytest
import yaml

from prophet_mx import Config, __version__
from prophet_mx.launcher.launch import free_port
from prophet_mx.monitoring.metrics import Metrics
from support.paths import ROOT

GITHUB = ROOT / ".github"


@pytest.mark.parametrize("name", ["problem", "wish"])
def test_a_template_of_an_issue_asks_for_what_helps(name):
    form = yaml.safe_load((GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml").read_text(encoding="utf-8"))
    assert form["name"] and form["description"]
    fields = [part for part in form["body"] if part["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields) and all(field["attributes"]["label"] for field in fields)
    assert any(field.get("validations", {}).get("required") for field in fields)


def test_ci_runs_what_anyone_runs():
    jobs = yaml.safe_load((GITHUB / "workflows" / "tests.yml").read_text(encoding="utf-8"))["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for command in commands:
        program, *rest = command.split()
        assert (ROOT / program).exists() or (program == "make" and rest[0] in targets), command
    versions = jobs["check"]["strategy"]["matrix"]["python"]
    assert versions == ["3.8", "3.9", "3.10", "3.11"] and "make check PYTHON=python${{ matrix.python }}" in commands


def test_the_citation_names_this_version():
    about = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert about["version"] == __version__ and about["license"] == "Apache-2.0" and about["references"][0]["year"] == 2021
    assert {"cff-version", "message", "title", "authors"} <= set(about)


@pytest.mark.parametrize(
    "page", ["SECURITY.md", "CODE_OF_CONDUCT.md", ".github/pull_request_template.md", ".github/ISSUE_TEMPLATE/problem.yml"]
)
def test_pages_for_visitors_name_files_that_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for path in re.findall(r"\]\((?!http)([^)#]+)\)|\b((?:docs/)?[\w-]+\.md)\b", text):
        assert (ROOT / (path[0] or path[1])).exists(), path


def test_the_dashboard_shows_metrics_that_there_are(monkeypatch):
    pytest.importorskip("prometheus_client")
    dashboard = json.loads((ROOT / "examples" / "grafana" / "dashboard.json").read_text(encoding="utf-8"))
    shown = set(re.findall(r"prophet_mx_\w+", json.dumps(dashboard)))
    state = {
        **dict.fromkeys(("units", "bytes", "blocks", "block_bytes", "wait_seconds", "inverted_bytes", "stalled_seconds", "iterations"), 1),
        **dict.fromkeys(("first_seconds", "first_answers", "first_ahead"), 1),
        "links": [{"rate": 1.0, "backlog_seconds": 1.0, "backlog_bytes": 1}],
    }

    monkeypatch.setattr("prophet_mx.monitoring.metrics.SAMPLE_SECONDS", 0)

    class Counting:
        def snapshot(self):
            return state

    metrics = Metrics(Config(metrics_port=free_port()), 0)
    try:
        for number in (1, 2):
            metrics.iteration(number, Counting())
        offered = {family.name + ("_total" if family.type == "counter" else "") for family in metrics._endpoint.collect()}
    finally:
        metrics.close()
    assert shown and shown <= offered, shown - offered
    places = [tuple(panel["gridPos"][side] for side in "xy") for panel in dashboard["panels"]]
    assert len(set(places)) == len(places) == len({panel["id"] for panel in dashboard["panels"]})
