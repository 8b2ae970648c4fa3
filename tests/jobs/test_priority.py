"""What the next forward pass needs first arrives first: measured over a slow link, with a backlog of later layers."""

import statistics

import pytest

from support.cluster import run_cluster
from support.paths import SCRIPTS

pytestmark = pytest.mark.alone

JOB = SCRIPTS / "priority.py"
RATE = 3_000_000  # bytes/s of each worker's connection
LAYERS = 12
ELEMENTS = 50_000  # 200 kB a layer: 2.4 MB, 0.8 s an iteration
ITERATIONS = 5


def first_layer(policy):
    """When the first layer is answered, as a part of the time until all layers are: the median over workers and iterations."""
    result = run_cluster(
        JOB, 2, 1, env={"PROPHET_POLICY": policy, "PROPHET_BANDWIDTH": str(RATE)}, args=[ITERATIONS, LAYERS, ELEMENTS, RATE], timeout=60
    )
    shares, spans = [], []
    for worker in result.workers:
        lines = [line.split() for line in worker.output.splitlines() if line.startswith("answers")]
        assert len(lines) == ITERATIONS, worker.output
        for line in lines[1:]:
            times = list(map(float, line[2:]))
            shares.append(times[0] / max(times))
            spans.append(max(times))
    # Else the link was not slow, and this would measure nothing.
    assert statistics.median(spans) > 0.8 * 4 * LAYERS * ELEMENTS / RATE, spans
    return statistics.median(shares)


@pytest.mark.parametrize("policy", ["prophet", "priority"])
def test_the_first_layer_overtakes_the_backlog(policy):
    """It leaves after what is in the window, not after all: 1/12 of the bytes are its own."""
    assert first_layer(policy) < 0.5


def test_with_fifo_the_first_layer_comes_last():
    assert first_layer("fifo") > 0.9
