"""prophet-mx report of a real job: figures that add up, and a page that a browser shows."""

import re
import shutil
from xml.etree import ElementTree

import pytest

from prophet_mx.monitoring.report_shapes import INKS
from prophet_mx.monitoring.trace import load_trace
from prophet_mx.monitoring.trace_figures import figures
from support.cluster import run_cluster
from support.commands import prophet_mx, run
from support.paths import SCRIPTS
from support.traces import straggling

JOB = SCRIPTS / "timeline.py"
LIMIT = 60  # seconds
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """The traces of a real job of two workers."""
    folder = tmp_path_factory.mktemp("real")
    run_cluster(
        JOB,
        2,
        1,
        args=[folder, 12, 30_000, 12],
        timeout=LIMIT,
        env={"PROPHET_TIMELINE": str(folder / "job.json"), "PROPHET_UNIT": "60000", "PROPHET_BANDWIDTH": "50MB", "PROPHET_WARMUP": "2"},
    )
    return [folder / f"job-{rank}.json" for rank in range(2)]


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


def show(page, folder, *arguments):
    """What Chromium makes of a page: with ``--dump-dom`` its content."""
    profile = folder / f"user-{len(list(folder.glob('user-*')))}"
    return run(CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *arguments, page.as_uri(), expect=0).stdout


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian: apt-get install chromium)")
def test_a_browser_shows_the_page(traces, tmp_path):
    image = pytest.importorskip("PIL.Image")
    page, shot = tmp_path / "r.html", tmp_path / "r.png"
    prophet_mx("report", *traces, "-o", page, expect=0)
    content = show(page, tmp_path, "--dump-dom")
    for heading in (
        "Workers",
        "In numbers",
        "Iteration time",
        "Wait of the first layer",
        "One iteration",
        "Link utilisation",
        "Step pattern",
    ):
        assert f"<h2>{heading}</h2>" in content
    assert "layer11" in content and "NaN" not in content and "nan" not in content
    assert re.search(r"The workers stall for .* of each .* iteration .*: the lower bound for this profile is about", content)
    show(page, tmp_path, f"--screenshot={shot}", "--window-size=1110,2400")
    picture = image.open(shot).convert("RGB")
    assert picture.size == (1110, 2400)
    colours = {colour: count for count, colour in picture.getcolors(1 << 24)}
    for name in ("backward", "compute", "answer", "wait"):  # without a pattern, and with one
        assert colours.get(tuple(bytes.fromhex(INKS[name].colour[1:])), 0) > 200, name


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian: apt-get install chromium)")
def test_a_browser_shows_the_verdict_and_which_of_two_workers_is_slow(tmp_path):
    page = tmp_path / "r.html"
    prophet_mx("report", *straggling(tmp_path), "-o", page, expect=0)
    [body] = re.findall(r"<body>.*</body>", show(page, tmp_path, "--dump-dom"), re.DOTALL)
    shown = ElementTree.fromstring(body)

    def texts(path):
        return [" ".join("".join(element.itertext()).split()) for element in shown.iterfind(path)]

    [verdict] = texts("p[@class='verdict']")
    assert verdict.startswith("The workers stall for 26 ms to 46 ms of each 120 ms iteration (22% to 38%)")
    assert "At most 19 ms are left to gain" in verdict and "the lower bound for this profile is about 101 ms" in verdict
    said = "Worker 1 is a straggler: it computes for at least 85 ms of an iteration, 1.31 times as long as most of the others, "
    assert texts("p[@class='straggler']") == [said + "which wait for it."]
    rows = [[cell.text for cell in row] for row in shown.iterfind(".//table[@class='workers']//tr")][1:]
    assert [(row[0], row[-1]) for row in rows] == [("worker 0", None), ("worker 1", "straggler")]
