"""Workers whose gradients become ready in different orders never lock each other, however small the limits."""
from pathlib import Path

import pytest

from cluster import run_cluster

JOB = Path(__file__).parent / "jobs" / "opposite_orders.py"
ITERATIONS = 200


@pytest.mark.parametrize("workers, servers, policy", [(2, 1, "prophet"), (2, 2, "priority"), (2, 1, "fifo"), (3, 2, "prophet")])
def test_opposite_and_random_orders_with_the_smallest_limits(workers, servers, policy):
    env = {"PROPHET_WINDOW": "1", "PROPHET_LEAD": "1", "PROPHET_POLICY": policy, "MXNET_KVSTORE_BIGARRAY_BOUND": "2000"}
    result = run_cluster(JOB, workers, servers, env=env, args=[ITERATIONS], timeout=100)
    assert all("requests answered" in worker.output for worker in result.workers)
