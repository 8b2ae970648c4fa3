"""What a job shows of itself: statistics, log lines, the endpoint, scalars, the timeline and its report; and the profile that it keeps."""

import importlib.util
import logging
import time
import urllib.request
from itertools import chain
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from prophet_mx.errors import ConfigError, ProfileError
from prophet_mx.launcher.launch import free_port
from prophet_mx.metrics import ScalarLogger
from prophet_mx.monitoring.trace import load_trace
from prophet_mx.monitoring.trace_figures import figures
from prophet_mx.profiling.gradient_profile import GradientProfile
from prophet_mx.torch import ScheduledOptimizer, Stats
from support.commands import prophet_mx
from support.lines import Lines
from support.ranks import on_ranks, ranks
from support.training import UNIT, batches, slow_link, step

WIDTH = 32
ITERATIONS = 14
WARMUP = 2
BYTES = 4 * 4 * (WIDTH * WIDTH + WIDTH)
NAMES = ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias", "3.weight", "3.bias"]


def net():
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(4)])


def scheduled(model, **settings):
    return ScheduledOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1), warmup=WARMUP, unit=UNIT, **settings)


def scraped(port):
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    return {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("prophet_mx_")}


class Points:
    """As a SummaryWriter."""

    def __init__(self):
        self.points = {}

    def add_scalar(self, tag, value, number):
        self.points.setdefault(tag, {})[number] = value


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """A real job of two ranks with everything turned on; its traces."""
    folder = tmp_path_factory.mktemp("shown")
    port = free_port() if importlib.util.find_spec("prometheus_client") else None
    ranks(2).call(__file__, "job_that_shows_everything", {"folder": str(folder), "port": port}, 60)
    return [folder / f"job-{rank}.json" for rank in range(2)]


def job_that_shows_everything(folder, port):
    """Run by each rank. Statistics of all kinds say the same of one job; without a port, all but the endpoint."""
    model = net()
    with Lines() as lines, slow_link(0.0005):
        optimizer = scheduled(model, metrics_port=port, log_every=5, timeline=f"{folder}/job.json", log_level="info")
        points = Points()
        scalars = ScalarLogger(optimizer, points, every=4)
        first = optimizer.stats()
        assert first["iterations"] == first["units"] == first["plans"] == 0 and first["steps"] == [] and first["rates"] == [0]
        began = time.monotonic()
        for batch in batches(ITERATIONS, 4, WIDTH):
            step(model, optimizer, batch)
            scalars()
        optimizer.synchronize()
        seconds = time.monotonic() - began

        stats = optimizer.stats()
        assert stats["policy"] == "prophet" and stats["iterations"] == ITERATIONS and stats["failure"] == ""
        assert stats["bytes"] == ITERATIONS * BYTES and UNIT <= stats["unit_bytes"] <= 1.5 * UNIT and stats["units"] > ITERATIONS
        assert stats["wait_seconds"] > 0 and 0 < stats["first_wait"] < seconds and 0 <= stats["first_ahead"] <= BYTES
        assert 0 < stats["stalled_seconds"] < seconds  # the link is slow
        assert 0 < stats["utilisation"] <= 1 and stats["rates"][0] > 0 and stats["startup_seconds"] > 0
        assert stats["plans"] >= 1 and sorted(chain(*stats["steps"])) == sorted(NAMES)
        assert len(stats["step_times"]) == len(stats["steps"]) and stats["step_times"][0] == 0

        time.sleep(0.6)  # the endpoint takes a sample twice a second
        step(model, optimizer, torch.ones(1, WIDTH))
        if port is not None:
            seen = scraped(port + dist.get_rank())
            assert seen["prophet_mx_iterations_total"] == ITERATIONS + 1
            assert ITERATIONS * BYTES <= seen["prophet_mx_bytes_total"] <= (ITERATIONS + 1) * BYTES
            assert stats["stalled_seconds"] <= seen["prophet_mx_stalled_seconds_total"]
            assert "prophet_mx_blocks_total" not in seen  # nothing counts any
        assert set(points.points["prophet_mx/iteration_seconds"]) == {5, 9, 13}
        assert points.points["prophet_mx/bytes"][13] == pytest.approx(BYTES, rel=0.3)
        optimizer.close()
        assert optimizer.stats()["iterations"] == ITERATIONS + 1
    told = [line for line in lines.messages if line.startswith("iterations ")]
    assert [line.split(":")[0] for line in told] == ["iterations 1 to 6", "iterations 6 to 11"]
    assert "the program waited" in told[0] and "blocks" not in told[0]


@on_ranks(2)
def test_plain_ddp_tells_the_time_of_its_iterations():
    """As 'prophet-mx compare' needs it."""
    ddp = nn.parallel.DistributedDataParallel(net())
    with Lines() as lines:
        optimizer = scheduled(ddp, policy="off", log_every=2)
        for batch in batches(5, 4, WIDTH):
            step(ddp, optimizer, batch)
    told = [line for line in lines.messages if line.startswith("iterations ")]
    assert [line.split(":")[0] for line in told] == ["iterations 1 to 3", "iterations 3 to 5"]
    assert all(line.endswith(" ms each, not scheduled") for line in told)


def test_a_trace_has_all_that_the_report_needs(traces):
    for path in traces:
        found = figures(load_trace(str(path)))
        assert found.trace.head["workers"] == 2 and found.trace.lost == 0 and found.rate > 0
        assert found.first_parameter == "0.weight"
        assert {unit.parameter for unit in found.trace.units.values()} <= set(NAMES)
        # All iterations after the plan but the last, which has no end; in each, all gradients once.
        assert [iteration.number for iteration in found.iterations][-1] == ITERATIONS - 1 and len(found.iterations) >= 8
        for iteration in found.iterations:
            assert iteration.bytes == BYTES and 0 < iteration.utilisation <= 1
            assert sum(iteration.parts.values()) == pytest.approx(iteration.seconds, abs=1e-5)
            assert all(passage.landed > passage.answered for passage in found.trace.passages[iteration.number].values())  # updated
            assert sum(size for *_, size in found.trace.steps[iteration.number]) == BYTES
        assert found.steps and all(0 < step.bytes <= BYTES for step in found.steps)
        # A link carries one unit after the other.
        wires = sorted(wire[1:] for number in found.trace.wires for wire in found.trace.wires[number])
        assert all(end <= begin + 2e-6 for (_, end), (begin, _) in zip(wires, wires[1:]))


def test_the_report_makes_a_page_of_it(traces, tmp_path):
    pytest.importorskip("jinja2")
    page = tmp_path / "report.html"
    prophet_mx("report", *traces, "-o", page, expect=0)
    text = page.read_text()
    assert (
        "The workers stall for" in text
        and "worker 1" in text
        and "<svg" in text
        and "0.weight" in text
        and "nan" not in text.lower().split("<body")[1].replace("announce", "")
    )


def test_a_timeline_is_started_and_ended_by_the_program(tmp_path):
    ranks(2).call(__file__, "job_that_starts_a_timeline", {"folder": str(tmp_path)}, 60)


def job_that_starts_a_timeline(folder):
    """Run by each rank."""
    model = net()
    optimizer = scheduled(model)
    assert optimizer.timeline_stop() is None
    for batch in batches(4, 4, WIDTH):
        step(model, optimizer, batch)
    optimizer.synchronize()
    path = optimizer.timeline_start(f"{folder}/{{rank}}.json")
    assert path == f"{folder}/{dist.get_rank()}.json"
    with pytest.raises(ConfigError, match="being written"):
        optimizer.timeline_start(f"{folder}/other.json")
    for batch in batches(4, 4, WIDTH):
        step(model, optimizer, batch)
    optimizer.synchronize()
    assert optimizer.timeline_stop() == path
    whole = figures(load_trace(path)).iterations
    assert [iteration.number for iteration in whole] == [4, 5, 6]
    for wrong in (f"{folder}/nowhere/trace.json", "auto"):
        with pytest.raises(ConfigError, match="timeline="):
            optimizer.timeline_start(wrong)
    optimizer.close()


def test_a_job_starts_from_the_profile_of_another(tmp_path):
    ranks(2).call(__file__, "job_that_keeps_its_profile", {"folder": str(tmp_path)}, 60)


def job_that_keeps_its_profile(folder):
    """Run by each rank. Only rank 0's file counts."""
    path = Path(folder, "profile.json") if dist.get_rank() == 0 else Path(folder, "nothing.json")
    model = net()
    optimizer = scheduled(model, profile=path)
    for batch in batches(WARMUP + 1, 4, WIDTH):
        assert not path.exists()
        step(model, optimizer, batch)
    learned = optimizer.stats()
    optimizer.close()
    dist.barrier()
    assert path.exists() == (dist.get_rank() == 0)
    saved = GradientProfile.load(Path(folder, "profile.json"))
    assert [gradient.name for gradient in saved.gradients] == NAMES  # in the order of forward
    assert learned["steps"] == [[saved.gradients[index].name for index in members] for members in saved.steps]

    again = net()
    optimizer = scheduled(again, profile=path)
    stats = optimizer.stats()
    assert (stats["plans"], stats["steps"], stats["step_times"]) == (1, learned["steps"], learned["step_times"])
    plain = net()
    other = torch.optim.SGD(plain.parameters(), lr=0.1)
    for batch in batches(6, 4, WIDTH):
        step(again, optimizer, batch)
        other.zero_grad()
        plain(batch).square().mean().backward()
        for parameter in plain.parameters():
            dist.all_reduce(parameter.grad.div_(2))
        other.step()
    optimizer.close()
    assert all(torch.equal(one, two) for one, two in zip(again.parameters(), plain.parameters()))

    smaller = nn.Linear(WIDTH, 1)
    with Lines(logging.WARNING) as lines:
        optimizer = scheduled(smaller, profile=path)
    assert optimizer.stats()["plans"] == 0
    assert any("other parameters" in line for line in lines.messages) == (dist.get_rank() == 0)
    optimizer.close()

    dist.barrier()
    if dist.get_rank() == 0:
        path.write_text("no profile")
    with pytest.raises(ProfileError, match=r"profile\.json"):
        scheduled(net(), profile=path)


@on_ranks(2)
def test_plain_ddp_has_no_statistics():
    model = net()
    ddp = nn.parallel.DistributedDataParallel(model)
    optimizer = ScheduledOptimizer(ddp, torch.optim.SGD(model.parameters(), lr=0.1), policy="off")
    stats = optimizer.stats()
    assert stats["policy"] == "off" and not any(value for key, value in stats.items() if key not in ("policy", "compress"))
    assert (
        stats.keys() == Stats.__annotations__.keys() - {"scheduled_seconds", "ddp_seconds"}
        and optimizer.counters() == {}
        and optimizer.timeline_stop() is None
    )
    with pytest.raises(ConfigError, match="nothing is scheduled"):
        optimizer.timeline_start("/tmp/trace.json")
    points = Points()
    scalars = ScalarLogger(optimizer, points, every=1)
    for batch in batches(3, 4, WIDTH):
        step(ddp, optimizer, batch)
        scalars()
    assert set(points.points) == {"prophet_mx/iteration_seconds"}
