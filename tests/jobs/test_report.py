"""prophet-mx report of a real job: figures that add up, and a page that a browser shows."""

import shutil

import pytest

from prophet_mx.monitoring.trace import load_trace
from prophet_mx.monitoring.trace_figures import figures
from support.cluster import run_cluster
from support.commands import prophet_mx, run
from support.paths import SCRIPTS

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


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (Debian: apt-get install chromium)")
def test_a_browser_shows_the_page(traces, tmp_path):
    image = pytest.importorskip("PIL.Image")
    page, shot = tmp_path / "r.html", tmp_path / "r.png"
    prophet_mx("report", *traces, "-o", page, expect=0)

    def chromium(*arguments):
        profile = tmp_path / f"user-{len(arguments)}"
        return run(CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *arguments, page.as_uri(), expect=0).stdout

    content = chromium("--dump-dom")
    for heading in (
        "What an iteration is made of",
        "Wait of the first layer",
        "Link utilisation",
        "Step pattern",
        "One iteration",
        "Iteration time",
    ):
        assert f"<h2>{heading}</h2>" in content
    assert content.count("<svg") == 9 and "layer11" in content and "NaN" not in content and "nan" not in content
    chromium(f"--screenshot={shot}", "--window-size=1110,2400")
    picture = image.open(shot).convert("RGB")
    assert picture.size == (1110, 2400)
    colours = {colour: count for count, colour in picture.getcolors(1 << 24)}
    for colour in ((0x33, 0x65, 0x9E), (0xCC, 0x66, 0x11), (0x99, 0xC2, 0xE8), (0xD5, 0xD5, 0xD5)):  # both traces' bars, answers, waits
        assert colours.get(colour, 0) > 200, colour
