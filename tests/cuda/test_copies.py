"""Copies of an emulated GPU: by priority, in both directions at once, and with constant memory."""

from pathlib import Path

import pytest

from support.cluster import run_cluster

JOB = Path(__file__).parent / "scripts" / "copies.py"
KEYS = 6


def copies(trace):
    """Direction and key of each copy, in order: a key's gradient has 4,000 bytes more than that of the key before."""
    lines = [line.split() for line in trace.read_text().splitlines()]
    return [(way, int(size) // 4000 - 1) for _, way, _, size in lines]


@pytest.mark.alone
def test_gradients_that_wait_are_copied_by_priority_and_values_come_back_in_between(emulated, tmp_path):
    trace = tmp_path / "trace"
    # 20 ms for the smallest: all gradients are there before the first two, which both copy threads take at once, have been copied.
    slow = {"EMULATED_CUDA_COPY_FROM": "200e3", "EMULATED_CUDA_TRACE": str(trace)}
    alone = {**emulated, "PROPHET_GROUPS": "off"}  # the values of a group come back together
    result = run_cluster(JOB, 1, 1, env=alone, role_env={"worker": slow}, args=[3], timeout=60)
    found = copies(trace)[-7 * KEYS : -KEYS]  # without those of init, and of the check in the end
    for iteration in range(3):
        part = found[iteration * 2 * KEYS : (iteration + 1) * 2 * KEYS]
        order = [key for way, key in part if way == "from"]
        assert sorted(order) == list(range(KEYS)) and order[2:] == sorted(order[2:]), (found, result.logs())
        ways = [way for way, _ in part]
        assert ways.index("to") < 2 * KEYS - 1 - ways[::-1].index("from"), (found, result.logs())


def test_memory_is_constant(emulated):
    result = run_cluster(JOB, 2, 1, env=emulated, args=[400], timeout=90)
    for worker in result.workers:
        used = [tuple(map(int, line.split()[2:])) for line in worker.output.splitlines() if line.startswith("in use")]
        assert len(used) == 8 and len({device for device, _ in used}) == 1, result.logs()
        assert used[-1][1] - used[2][1] < 2 << 20, (used, result.logs())
